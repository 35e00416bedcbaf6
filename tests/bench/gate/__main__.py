"""Do the judges reach their goals? Each part measures some of them; `--only PART` runs one, `--quick` a tenth of it.

A part is a module beside this file with `list_goals(quick)` and `measure(quick)`.
"""

import argparse
import sys

from tests.bench.table import finish, run_parts

PARTS = (
    "false_alarms",
    "power",
    "everyone",
    "worlds",
    "whole",
    "night",
    "jumps",
    "steps",
    "speed",
    "scale",
    "store",
    "convergence",
    "new_jaxlib",
    "real_pairs",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="nox -s bench_gate --", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part; may be given several times")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the series: shows that it runs, decides little"
    )
    given = parser.parse_args()
    rows = run_parts("gate", given.only or PARTS, given.quick)
    return finish("bench_gate", rows)


if __name__ == "__main__":
    sys.exit(main())
