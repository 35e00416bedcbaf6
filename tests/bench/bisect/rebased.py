"""Does a bisection find a planted change on branches that diverged, as a branch before and after a rebase?

In: nothing but git. Out: a table of rows. The repository has 40 commits, each with a file of its own. A branch carries
a patch without which no test runs; its ends are before and after a rebase.
"""

import tempfile
from pathlib import Path

from tests.bench.bisect.plants import Plant, Stream, add, count_right, load
from tests.bench.table import Row

TITLE = "A branch that was rebased: plants found"
GOAL = "right answers of 6, branch before and after a rebase"
COMMITS = 40
PARTED, MOVED = 12, 30  # commits from which the branch was made, and onto which it was rebased
TEST = """import pathlib, sys
if not pathlib.Path("patch").exists():
    sys.exit(125)
sys.exit(all(pathlib.Path(name).exists() for name in sys.argv[1:]))
"""


def plants() -> list[Plant]:
    marks = {f"m{at}": f"m{at}" for at in (13, 14, 20, 29, 30)} | {"work 1": "work"}  # subject: file
    return [
        Plant(files=(f"marks/{mark}",), culprits=(subject,), good="old-work", bad="work")
        for subject, mark in marks.items()
    ]


def make_repository(folder: Path) -> Path:
    stream = Stream(every_s=120)
    last = stream.commit("main", "start", [add("marks/m0")])
    for at in range(1, COMMITS + 1):
        last = stream.commit("main", f"m{at}", [add(f"marks/m{at}")], last)
    for branch, parent in (("old-work", PARTED), ("work", MOVED)):
        tip = stream.commit(branch, "patch the build", [add("patch")], parent + 1)
        stream.commit(branch, f"{branch} 1", [add(f"marks/{branch}")], tip)
    return load(folder / "repository", stream)


def list_goals() -> dict[str, list[str]]:
    return {TITLE: [GOAL]}


def measure() -> list[tuple[str, list[Row]]]:
    with tempfile.TemporaryDirectory() as folder:
        return [(TITLE, count_right(GOAL, Path(folder), make_repository(Path(folder)), TEST, plants()))]
