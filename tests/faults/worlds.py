"""The folders in which commands are run, and the commands: nights, a store with a history, baselines, a published page.

In: an empty folder. Out: what stands in it before the command, so that a fault could lose it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from nightjar_ci.baselines.baseline import make_convergence
from nightjar_ci.formats.documents import write_json
from tests.ci.jobs import python
from tests.ci.nights import CELL, make_night, outcome, record
from tests.places import ROOT

Words = tuple[str, ...]
POLICIES: Words = ("--policies", str(ROOT / "ci" / "policies.toml"), "--baselines", "baselines")
JOB = (
    "import json, os, pathlib\n"
    "result = json.loads(pathlib.Path('result.json').read_text())\n"
    "result['job'] = os.environ['NIGHTJAR_JOB']\n"
    "pathlib.Path(os.environ['NIGHTJAR_OUT'], 'result.json').write_text(json.dumps(result))\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A command and what it works on.

    Attributes:
        prepare: commands that are run before, without a fault.
        command: the words after `nightjar-ci`.
        again: what a user runs after a fault in this folder, and whether it completes what was begun; None: the same
            command, and it does.
        done: what the command says if it is run again though it was complete; it then ends with another code.
        code: the command's exit code without a fault.
    """

    prepare: tuple[Words, ...] = ()
    command: Words
    again: Callable[[Path], tuple[Words, bool]] | None = None
    done: str | None = None
    code: int = 0


def fill(folder: Path) -> None:
    """Two nights, their baselines and a matrix of two jobs."""
    for number in (20, 21):
        runs = [(outcome(f"{CELL}-s{seed}"), record(seed)) for seed in range(2)]
        night = make_night(folder / "state" / "nights" / f"n{number}", runs, f"2026-11-{number}T0300-1a2b")
        for path in (*night.rglob("*"), night):
            os.utime(path, (1e9, 1e9))  # old enough for `prune`
    seeds = [record(seed) for seed in range(10)]
    baseline = make_convergence(CELL, ("train", "--out", "{out}"), seeds)
    write_json(folder / "baselines" / CELL / "convergence.json", baseline)
    (folder / "result.json").write_text(record(0).model_dump_json(by_alias=True))
    lines = ['schema = "nightjar.matrix/1"', 'name = "two"']
    for name in ("a", "b"):
        lines += ["[[job]]", f'name = "{name}"', f"command = {json.dumps(python(JOB))}"]
    (folder / "matrix.toml").write_text("\n".join(lines) + "\n")


RUN: Words = ("run", "matrix.toml", "--out", "state/nights/new")


def resume(folder: Path) -> tuple[Words, bool]:
    """Goes on with the night; where a job of it has failed, its user runs another one."""
    night = folder / "state" / "nights" / "new" / "night.json"
    if not night.is_file():
        return RUN, True
    if json.loads(night.read_text())["finished_at"] is None:
        return (*RUN, "--resume"), True
    return (*RUN[:-1], "state/nights/another"), False


FIRST, SECOND = ("state/nights/n20", "state/nights/n21")
IMPORT: Words = ("store", "--import", FIRST)
GATE: Words = ("gate", SECOND, *POLICIES)
SITE: Words = ("site", "--out", "site", "--nights", "state/nights")
WORLDS: Mapping[str, World] = MappingProxyType(
    {
        "run": World(
            prepare=(IMPORT,),
            command=RUN,
            again=resume,
        ),
        "gate": World(prepare=(IMPORT,), command=GATE),
        "report": World(prepare=(IMPORT, GATE, ("report", SECOND, *POLICIES)), command=("report", SECOND, *POLICIES)),
        "store": World(prepare=(IMPORT,), command=("store", "--import", SECOND)),
        "site": World(prepare=(IMPORT, GATE, ("report", SECOND, *POLICIES), SITE), command=SITE),
        "accept": World(
            prepare=(IMPORT, ("store", "--import", SECOND)),
            command=(
                *("accept", f"{CELL}/step_time", "--reason", "twice the data", "--by", "somebody"),
                *("--night", "2026-11-21T0300-1a2b", *POLICIES[2:], *POLICIES[:2]),
            ),
            done="is already accepted",
        ),
        "prune": World(prepare=(IMPORT, ("store", "--import", SECOND)), command=("prune", "--keep-days", "1")),
    }
)
