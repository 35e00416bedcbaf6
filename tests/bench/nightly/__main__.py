"""What do sixty nightly days of JAX cost, and is none of them mixed? A loopback index of six packages a day.

`nox -s bench_nightly` takes about 20 minutes; `-- --quick` with 12 days and 4 bisections about 4. `--only PART` runs
one part. The wheels hold no compiled code: names, tags and metadata are those of jax and jaxlib as installed here,
relabelled for each day, and every seventh day lacks one wheel.
"""

import sys

from tests.bench.table import run_bench

PARTS = ("lock", "bisection")


def main() -> int:
    return run_bench("nightly", PARTS, __doc__, quick="12 days and 4 bisections instead of 60 and 20")


if __name__ == "__main__":
    sys.exit(main())
