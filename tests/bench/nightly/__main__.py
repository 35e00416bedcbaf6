"""What do sixty nightly days of JAX cost, and is none of them mixed? A loopback index of six packages a day.

`nox -s bench_nightly` takes about 20 minutes; `-- --quick` with 12 days and 4 bisections about 4. `--only PART` runs
one part. The wheels hold no compiled code: names, tags and metadata are those of jax and jaxlib as installed here,
relabelled for each day, and every seventh day lacks one wheel.
"""

import argparse
import sys

from tests.bench.table import finish, run_parts

PARTS = ("lock", "bisection")


def main() -> int:
    parser = argparse.ArgumentParser(prog="nox -s bench_nightly --", description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="run this part; may be given several times")
    parser.add_argument("--quick", action="store_true", help="12 days and 4 bisections instead of 60 and 20")
    given = parser.parse_args()
    return finish("bench_nightly", run_parts("nightly", given.only or PARTS, given.quick))


if __name__ == "__main__":
    sys.exit(main())
