"""Does a bisection find a planted change in a repository of 300 commits, whatever its history looks like?

In: nothing but git. Out: a table of rows. The repository has merged branches, a submodule, ranges that cannot be built
and a branch that was pushed by force. Each commit adds a file of its own, so a test is bad from any commit on that one
chooses: where the files of the planted change are there.
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

TITLE = "A repository of 300 commits: plants found"
GOAL = "right answers of 20"
MAIN = 240  # commits along first parents without the merges
BRANCH_EVERY, BRANCH = 20, 4
BROKEN = (range(33, 40), range(103, 115), range(203, 209))  # main commits that cannot be built; no merge among them
PINNED = (50, 150)  # main commits from which on the submodule is at its second and third commit
FORKED, OLD, NEW = 220, 4, 8  # where the branch that was pushed by force forks, and its commits before and after
SHORT_NAME = re.compile(r"(?<![\w.])[0-9a-f]{7,40} ")
TEST = """import pathlib, sys
if pathlib.Path("broken").exists():
    sys.exit(125)
sys.exit(all(pathlib.Path(name).exists() for name in sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    files: tuple[str, ...]
    culprits: tuple[str, ...]
    good: str = "start"
    bad: str = "main"


def plants() -> list[Plant]:
    return [
        *(Plant(files=(f"marks/m{at}",), culprits=(f"m{at}",)) for at in (1, 21, 41, 64, 137, 178, 199, 240)),
        *(
            Plant(files=(f"marks/b{branch}-{at}",), culprits=(f"b{branch}-{at}",))
            for branch, at in ((2, 1), (6, 4), (9, 2))
        ),
        # a merge whose sides do not go together: the branch alone is good, and so is main before it
        *(
            Plant(files=(f"marks/b{number}-1", f"marks/m{at}"), culprits=(f"merge b{number}",))
            for number, at in ((4, 81), (8, 161))
        ),
        *(Plant(files=(f"inner/pin{number}",), culprits=(f"m{at}",)) for number, at in enumerate(PINNED, start=1)),
        *(
            Plant(
                files=(f"marks/m{part.start + 2}",), culprits=tuple(f"m{at}" for at in range(part.start, part.stop + 1))
            )
            for part in BROKEN
        ),
        *(Plant(files=(f"marks/new{at}",), culprits=(f"new{at}",), good="old-topic", bad="topic") for at in (2, 7)),
    ]


@dataclass(slots=True)
class Stream:
    every_s: int = 60
    lines: list[str] = field(default_factory=list)
    count: int = 0

    def commit(self, branch: str, subject: str, changes: Sequence[str], *parents: int | str) -> int:
        self.count += 1
        when = f"A <a@example.invalid> {1_700_000_000 + self.every_s * self.count} +0000"
        self.lines += [f"commit refs/heads/{branch}", f"mark :{self.count}", f"committer {when}"]
        self.lines += [f"data {len(subject)}", subject]
        for word, parent in zip(("from", "merge"), parents, strict=False):
            self.lines.append(f"{word} {parent if isinstance(parent, str) else f':{parent}'}")
        self.lines += [*changes, ""]
        return self.count


def make_repository(folder: Path) -> Path:
    """The repository; `old-topic` is what `topic` was before it was pushed by force."""
    inner = folder / "inner"
    git(folder, "init", "-q", "-b", "main", str(inner))
    pins = []
    for number in range(3):
        (inner / f"pin{number}").write_text("")
        git(inner, "add", "-A")
        git(inner, "commit", "-q", "-m", f"pin {number}")
        pins.append(git(inner, "rev-parse", "HEAD").strip())
    stream = Stream()
    modules = f'[submodule "inner"]\npath = inner\nurl = {inner}'
    start = [f"M 100644 inline .gitmodules\ndata {len(modules)}\n{modules}", f"M 160000 {pins[0]} inner"]
    last = stream.commit("main", "start", start)
    forked = last
    for at in range(1, MAIN + 1):
        changes = [add(f"marks/m{at}")]
        if any(at == part.start for part in BROKEN):
            changes.append(add("broken"))
        if any(at == part.stop for part in BROKEN):
            changes.append("D broken")
        if at in PINNED:
            changes.append(f"M 160000 {pins[1 + PINNED.index(at)]} inner")
        before, last = last, stream.commit("main", f"m{at}", changes, last)
        if at % BRANCH_EVERY == 1:
            number, tip = at // BRANCH_EVERY, before
            for step in range(1, BRANCH + 1):
                tip = stream.commit(f"b{number}", f"b{number}-{step}", [add(f"marks/b{number}-{step}")], tip)
            merged = [add(f"marks/b{number}-{step}") for step in range(1, BRANCH + 1)]
            last = stream.commit("main", f"merge b{number}", merged, last, tip)
        if at == FORKED:
            forked = last
    for name, length in (("old", OLD), ("new", NEW)):
        tip = forked
        branch = "topic" if name == "new" else "old-topic"
        for step in range(1, length + 1):
            tip = stream.commit(branch, f"{name}{step}", [add(f"marks/{name}{step}")], tip)
    return load(folder / "repository", stream)


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
    done = subprocess.run(
        ["git", *names, *arguments], cwd=folder, input=stdin, check=True, capture_output=True, text=True, env=environ()
    )
    return done.stdout


def environ() -> dict[str, str]:
    allowed = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "protocol.file.allow", "GIT_CONFIG_VALUE_0": "always"}
    return {**os.environ, **allowed}


def bisect(folder: Path, ladder: Sequence[str], test: str, files: Sequence[str]) -> tuple[list[str], int, str]:
    """The rungs that the command names, the tests that it took, and the title of its answer; the test never errs."""
    command = [sys.executable, "-m", "nightjar_ci", "bisect", "--json", "--deterministic", *ladder]
    command += ["--", sys.executable, str(folder / test), *files]
    state = {**environ(), "NIGHTJAR_STATE_DIR": str(folder / "state")}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=state)
    if not done.stdout:
        return [], 0, done.stderr[-300:]
    answer = json.loads(done.stdout)
    return [SHORT_NAME.sub("", name) for name in answer["culprits"]], int(answer["tests"]), str(answer["title"])


def list_goals() -> dict[str, list[str]]:
    return {TITLE: [GOAL]}


def measure(only: Sequence[Plant] = ()) -> list[tuple[str, list[Row]]]:
    chosen, right, tests = list(only) or plants(), 0, 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        repository = make_repository(folder)
        (folder / "test.py").write_text(TEST)
        for plant in chosen:
            ladder = ("--repo", str(repository), "--good", plant.good, "--bad", plant.bad)
            named, spent, title = bisect(folder, ladder, "test.py", plant.files)
            tests += spent
            is_right = tuple(named) == plant.culprits  # and no commit besides that could have been told from it
            right += is_right
            if not is_right:
                print(f"wrong: {plant.culprits[0]}, and it says {named[:3]}: {title}", file=sys.stderr, flush=True)
    goal = Row(GOAL, right, goal=len(chosen), better="higher")
    return [(TITLE, [goal, Row("tests (mean)", tests / len(chosen), unit="tests")])]
