"""Does the gate of programs that are compiled ahead of time reach its goals? Each part measures some of them.

`--only PART` runs one part, `--quick` a piece of it. `--folder FOLDER` keeps what is compiled there, and does not
compile again what is there already, so that a session that was ended goes on.

A part is a module beside this file with `list_goals(quick, folder)` and `measure(quick, folder)`.
"""

import sys
import tempfile
from pathlib import Path

from tests.bench.table import finish, make_parser, print_rows, run_parts

PARTS = ("functions", "faults")


def main() -> int:
    parser = make_parser("aot", PARTS, __doc__)
    parser.add_argument("--quick", action="store_true", help="a part of the work: shows that it runs, decides little")
    parser.add_argument("--folder", type=Path, help="keep what is compiled here, and take what is here already")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder.resolve() if given.folder is not None else Path(temporary)
        rows = run_parts("aot", given.only or PARTS, given.quick, folder)
    if len(given.only or PARTS) > 1:
        print_rows("aot", rows)
    return finish("bench_aot", rows)


if __name__ == "__main__":
    sys.exit(main())
