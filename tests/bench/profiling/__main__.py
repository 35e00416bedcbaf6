"""Does the profiler reach its goals? Each part measures some of them; `--only PART` runs one.

A part is a module beside this file with `list_goals()` and `measure()`.
"""

import sys

from tests.bench.table import run_bench

PARTS = ("outputs", "ranks", "xspace", "attribution")


def main() -> int:
    return run_bench("profiling", PARTS, __doc__)


if __name__ == "__main__":
    sys.exit(main())
