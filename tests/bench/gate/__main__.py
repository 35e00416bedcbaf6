"""Do the judges reach their goals? Each part measures some of them; `--only PART` runs one, `--quick` a tenth of it.

A part is a module beside this file with `list_goals(quick)` and `measure(quick)`.
"""

import sys

from tests.bench.table import run_bench

PARTS = (
    "false_alarms",
    "power",
    "everyone",
    "worlds",
    "whole",
    "night",
    "jumps",
    "steps",
    "store",
    "convergence",
    "new_jaxlib",
)


def main() -> int:
    return run_bench("gate", PARTS, __doc__, quick="a tenth of the series: shows that it runs, decides little")


if __name__ == "__main__":
    sys.exit(main())
