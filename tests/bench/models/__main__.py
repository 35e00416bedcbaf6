"""What does the trainer cost? Overhead over the bare loop and time spent waiting for data, of every tiny preset."""

import argparse
import sys

from tests.bench.table import finish, run_parts


def main() -> int:
    argparse.ArgumentParser(prog="nox -s bench_models --", description=__doc__).parse_args()
    return finish("bench_models", run_parts("models", ["trainer"]))


if __name__ == "__main__":
    sys.exit(main())
