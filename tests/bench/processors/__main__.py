"""Are the committed baselines right on processors that did not make them?

`nox -s bench_processors` takes about 25 minutes. `--only unchanged` runs README's first command with each instruction
set that XLA can be held to, under each Python of this machine; `--only faults` plants fifteen faults under one of them.
"""

import argparse
import sys

from tests.bench.table import finish, run_parts

PARTS = ("unchanged", "faults")


def main() -> int:
    parser = argparse.ArgumentParser(prog="nox -s bench_processors --", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part; may be given several times")
    given = parser.parse_args()
    return finish("bench_processors", run_parts("processors", given.only or PARTS))


if __name__ == "__main__":
    sys.exit(main())
