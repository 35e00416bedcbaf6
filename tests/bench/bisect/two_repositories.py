"""Does a bisection find a planted change in two repositories that are built together, and on branches that diverged?

In: nothing but git. Out: a table of rows. `app` has 40 commits, `lib` 60, and a file of `app` pins a commit of `lib`,
which it moves five times. Each commit adds a file of its own. A test is bad where all files of its plant are there; it
cannot tell where `lib` is older than what `app` pins, as a build that fails. A branch of `app` carries a patch without
which no test runs; its ends are before and after a rebase.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.table import Row

TITLE = "Two repositories of 40 and 60 commits: plants found"
GOAL, REBASED = "right answers of 20", "right answers of 6, branch before and after a rebase"
APP, LIB = 40, 60
BUMPS = {6: 10, 14: 22, 21: 33, 29: 45, 37: 56}  # commit of app: the commit of lib that it pins from then on
APP_EVERY_S, LIB_EVERY_S = 120, 60  # between two commits, so that what is pinned is older than the pin
PIN = "third_party/lib.bzl"
SHORT_NAME = re.compile(r"(?<![\w.])[0-9a-f]{7,40} ")
PARTED, MOVED = 12, 30  # commits of app from which the branch was made, and onto which it was rebased
REBASED_PLANTS = {f"m{at}": f"m{at}" for at in (13, 14, 20, 29, 30)} | {"work 1": "work"}  # subject: file
TEST = """import pathlib, re, sys
app, lib = pathlib.Path("app"), pathlib.Path("lib")
needed = re.search("needs ([0-9]+)", (app / "third_party/lib.bzl").read_text())[1]
if not (lib / "marks" / f"x{needed}").exists():
    sys.exit(125)
sys.exit(all(pathlib.Path(name).exists() for name in sys.argv[1:]))
"""
TEST_PATCHED = """import pathlib, sys
if not pathlib.Path("patch").exists():
    sys.exit(125)
sys.exit(all(pathlib.Path(name).exists() for name in sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    files: tuple[str, ...]
    culprit: str
    heads: bool = False


def plants() -> list[Plant]:
    """Twenty plants: in either one, at a move of the pin, and in two commits that do not go together."""
    app, lib = (1, 6, 7, 20, 21, 36, 40), (1, 10, 11, 30, 45, 46, 56)
    return [
        *(Plant(files=(f"app/marks/m{at}",), culprit=f"app m{at}") for at in app),
        *(Plant(files=(f"lib/marks/x{at}",), culprit=f"lib x{at}") for at in lib),
        # what app adds at 10 and lib at 40: the pin moves over 40 at 29, so lib's commit comes last, and so on
        Plant(files=("app/marks/m10", "lib/marks/x40"), culprit="lib x40"),
        Plant(files=("app/marks/m33", "lib/marks/x12"), culprit="app m33"),
        Plant(files=("app/marks/m21", "lib/marks/x33"), culprit="app m21"),
        *(Plant(files=(f"lib/marks/x{at}",), culprit=f"lib x{at}", heads=True) for at in (34, 60)),
        Plant(files=("app/marks/m39",), culprit="app m39", heads=True),
    ]


@dataclass(slots=True)
class Stream:
    every_s: int
    lines: list[str] = field(default_factory=list)
    count: int = 0

    def commit(self, branch: str, subject: str, changes: Sequence[str], parent: int | None = None) -> int:
        self.count += 1
        when = f"A <a@example.invalid> {1_700_000_000 + self.every_s * self.count} +0000"
        self.lines += [f"commit refs/heads/{branch}", f"mark :{self.count}", f"committer {when}"]
        self.lines += [f"data {len(subject)}", subject]
        if parent is not None:
            self.lines.append(f"from :{parent}")
        self.lines += [*changes, ""]
        return self.count


def make_repositories(folder: Path) -> tuple[Path, Path]:
    lib, app = Stream(every_s=LIB_EVERY_S), Stream(every_s=APP_EVERY_S)
    last = lib.commit("main", "start", [add("marks/x0")])
    for at in range(1, LIB + 1):
        last = lib.commit("main", f"x{at}", [add(f"marks/x{at}")], last)
    lib_folder = load(folder / "lib", lib)
    commits = git(lib_folder, "rev-list", "--reverse", "main").split()
    last = app.commit("main", "start", [render_pin(commits[0], 0)])
    for at in range(1, APP + 1):
        changes = [add(f"marks/m{at}")]
        if at in BUMPS:
            changes.append(render_pin(commits[BUMPS[at]], BUMPS[at]))
        last = app.commit("main", f"m{at}", changes, last)
    for branch, parent in (("old-work", PARTED), ("work", MOVED)):
        tip = app.commit(branch, "patch the build", [add("patch")], parent + 1)
        tip = app.commit(branch, f"{branch} 1", [add(f"marks/{branch}")], tip)
    return load(folder / "app", app), lib_folder


def render_pin(sha: str, number: int) -> str:
    text = f'# needs {number}\nLIB_COMMIT = "{sha}"\n'
    return f"M 100644 inline {PIN}\ndata {len(text)}\n{text}"


def load(repository: Path, stream: Stream) -> Path:
    git(repository.parent, "init", "-q", "-b", "main", str(repository))
    git(repository, "fast-import", "--quiet", stdin="\n".join(stream.lines) + "\n")
    git(repository, "tag", "start", ":/^start$")
    git(repository, "reset", "-q", "--hard", "main")
    return repository


def add(path: str) -> str:
    return f"M 100644 inline {path}\ndata 0\n"


def git(folder: Path, *arguments: str, stdin: str | None = None) -> str:
    names = ("-c", "user.name=A", "-c", "user.email=a@example.invalid", "-c", "commit.gpgsign=false")
    command = ["git", *names, *arguments]
    return subprocess.run(command, cwd=folder, input=stdin, check=True, capture_output=True, text=True).stdout


def bisect(folder: Path, ladder: Sequence[str], test: str, files: Sequence[str]) -> tuple[list[str], int, str]:
    """The rungs that the command names, the tests that it took, and the title of its answer; the test never errs."""
    command = [sys.executable, "-m", "nightjar_ci", "bisect", "--json", "--deterministic", *ladder]
    command += ["--", sys.executable, str(folder / test), *files]
    state = {**os.environ, "NIGHTJAR_STATE_DIR": str(folder / "state")}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=state)
    if not done.stdout:
        return [], 0, done.stderr[-300:]
    answer = json.loads(done.stdout)
    return [SHORT_NAME.sub("", name) for name in answer["culprits"]], int(answer["tests"]), str(answer["title"])


def list_options(folder: Path, plant: Plant) -> list[str]:
    """The ladder of a plant: both ends of `app` alone with its pin, or those of both."""
    options = ["--repo", f"app={folder / 'app'}", "--repo", f"lib={folder / 'lib'}"]
    options += ["--good", "app=start", "--bad", "app=main"]
    if plant.heads:
        return [*options, "--good", "lib=start", "--bad", "lib=main"]
    return [*options, "--pin", f"app:{PIN}"]


def list_goals() -> dict[str, list[str]]:
    return {TITLE: [GOAL, REBASED]}


def measure() -> list[tuple[str, list[Row]]]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_repositories(folder)
        (folder / "test.py").write_text(TEST)
        (folder / "patched.py").write_text(TEST_PATCHED)
        right, spent = 0, 0
        for plant in plants():
            named, tests, title = bisect(folder, list_options(folder, plant), "test.py", plant.files)
            right += named == [plant.culprit]
            spent += tests
            if named != [plant.culprit]:
                print(f"wrong: {plant.culprit}, and it says {named[:3]}: {title}", file=sys.stderr, flush=True)
        rebased = 0
        for culprit, mark in REBASED_PLANTS.items():
            ladder = ("--repo", str(folder / "app"), "--good", "old-work", "--bad", "work")
            named, _, title = bisect(folder, ladder, "patched.py", [f"marks/{mark}"])
            rebased += named == [culprit]
            if named != [culprit]:
                print(f"wrong: {culprit}, and it says {named[:3]}: {title}", file=sys.stderr, flush=True)
    number, of_branches = len(plants()), len(REBASED_PLANTS)
    rows = [
        Row(GOAL, right, goal=number, better="higher"),
        Row(REBASED, rebased, goal=of_branches, better="higher"),
        Row("tests (mean)", spent / number, unit="tests"),
    ]
    return [(TITLE, rows)]
