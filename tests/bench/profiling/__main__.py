"""Does the profiler reach its goals? Each part measures some of them; `--only PART` runs one.

A part is a module beside this file with `list_goals()` and `measure()`.
"""

import argparse
import sys

from tests.bench.table import finish, run_parts

PARTS = ("outputs", "ranks", "xspace", "attribution")


def main() -> int:
    parser = argparse.ArgumentParser(prog="nox -s bench_profiling --", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part; may be given several times")
    rows = run_parts("profiling", parser.parse_args().only or PARTS)
    return finish("bench_profiling", rows)


if __name__ == "__main__":
    sys.exit(main())
