"""What does a night cost those who pull it, and those who build it? Real builds, a registry on loopback.

`nox -s bench_images` measures CUDA 12 (an hour, 40 GB of disk, 4 GB to download); `-- --flavor cpu` the same tree in
minutes, without the goals that only CUDA's sizes make sense of. `--only PART` runs one part, and may be repeated. A
part is a module beside this file with `list_goals(flavor)` and `measure(flavor)`.
"""

import sys

from nightjar_ci.images.tree import find_flavors
from tests.bench.images.workshop import CHECKOUT, drop_builds
from tests.bench.table import finish, make_parser, run_parts

PARTS = ("rebuild", "identity", "delta", "sizes")


def main() -> int:
    parser = make_parser("images", PARTS, __doc__)
    parser.add_argument("--flavor", choices=find_flavors(CHECKOUT), default="cuda12", help="of the images")
    given = parser.parse_args()
    rows = []
    for number, part in enumerate(given.only or PARTS):
        if number:
            drop_builds()  # a part of CUDA 12 fills what a disk has left
        rows += run_parts("images", [part], given.flavor)
    return finish("bench_images", rows)


if __name__ == "__main__":
    sys.exit(main())
