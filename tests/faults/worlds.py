"""The folders in which commands are run, and the commands: nights, a store with a history, baselines, a published page.

In: an empty folder. Out: what stands in it before the command, so that a fault could lose it.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from nightjar_ci.baselines.baseline import make_convergence
from nightjar_ci.formats.documents import write_json
from tests.ci.nights import CELL, make_night, outcome, record
from tests.faults.images import make_images
from tests.faults.services import REPOSITORY
from tests.places import ROOT

Words = tuple[str, ...]
POLICIES: Words = ("--policies", str(ROOT / "ci" / "policies.toml"), "--baselines", "baselines")
# writes its result; in a shell, which starts sooner than Python
JOB = """sed "s/\\"job\\": *\\"[^\\"]*\\"/\\"job\\": \\"$NIGHTJAR_JOB\\"/" result.json >"$NIGHTJAR_OUT/result.json" """


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
        service: the server to which it writes, of `services.SERVICES`.
        edit: what is changed after `prepare`.
        varies: files that differ from run to run, as patterns: they depend on how long something took.
        says: what the command prints when it is run again after a fault.
    """

    prepare: tuple[Words, ...] = ()
    command: Words
    again: Callable[[Path], tuple[Words, bool]] | None = None
    done: str | None = None
    code: int = 0
    service: str | None = None
    edit: Callable[[Path], None] | None = None
    varies: tuple[str, ...] = ()
    says: str = ""


def fill(folder: Path) -> None:
    """Two nights, their baselines, a matrix of two jobs, a ladder of twelve rungs, and a checkout with two images."""
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
        lines += ["[[job]]", f'name = "{name}"', f"command = {json.dumps(['sh', '-c', JOB])}"]
    (folder / "matrix.toml").write_text("\n".join(lines) + "\n")
    (folder / "rungs.txt").write_text("".join(f"r{number}\n" for number in range(12)))
    (folder / "tmp").mkdir()
    make_images(folder)


RUN: Words = ("run", "matrix.toml", "--out", "state/nights/new")


def resume(folder: Path) -> tuple[Words, bool]:
    """Goes on with the night; where a job of it has failed, its user runs another one."""
    night = folder / "state" / "nights" / "new" / "night.json"
    if not night.is_file():
        return RUN, True
    if json.loads(night.read_text())["finished_at"] is None:
        return (*RUN, "--resume"), True
    return (*RUN[:-1], "state/nights/another"), False


def edit_pins(folder: Path) -> None:
    for path in (folder / "docker" / "locks" / "jax-cpu.txt", folder / "docker" / "versions.json"):
        path.write_text(path.read_text().replace("0.12.0", "0.13.0").replace("3.13", "3.14"))


FIRST, SECOND = ("state/nights/n20", "state/nights/n21")
IMPORT: Words = ("store", "--import", FIRST)
GATE: Words = ("gate", SECOND, *POLICIES)
IMPORT_SECOND: Words = ("store", "--import", SECOND)
ACCEPT: Words = (
    *("accept", f"{CELL}/step_time", "--reason", "twice the data"),
    *("--night", "2026-11-21T0300-1a2b", *POLICIES[2:], *POLICIES[:2]),
)
SITE: Words = ("site", "--out", "site", "--nights", "state/nights")
BISECT: Words = ("bisect", "--rungs", "rungs.txt", "--workers", "1", "--deterministic")
TEST: Words = ("--", "sh", "-c", "case {rung} in r7|r8|r9|r10|r11) exit 1 ;; esac")


def push(name: str, number: int) -> Words:
    return ("images", "push", name, "--to", f"${REPOSITORY}", "--date", f"2026-11-{number}", "--tests", "tests.json")


WORLDS: Mapping[str, World] = MappingProxyType(
    {
        "run": World(prepare=(IMPORT,), command=RUN, again=resume),
        "gate": World(prepare=(IMPORT,), command=GATE),
        "report": World(prepare=(IMPORT, GATE, ("report", SECOND, *POLICIES)), command=("report", SECOND, *POLICIES)),
        "store": World(prepare=(IMPORT,), command=IMPORT_SECOND),
        "site": World(prepare=(IMPORT, GATE, ("report", SECOND, *POLICIES), SITE), command=SITE),
        "accept": World(prepare=(IMPORT, IMPORT_SECOND), command=ACCEPT, done="is already accepted"),
        "accept on PostgreSQL": World(
            prepare=(IMPORT, IMPORT_SECOND), command=ACCEPT, done="is already accepted", service="postgres"
        ),
        "images push": World(prepare=(push("first", 20),), command=push("second", 21), service="registry"),
        "images lock --of": World(
            prepare=(push("first", 20),),
            edit=edit_pins,
            command=("images", "lock", "--of", f"${REPOSITORY}:first-cpu-2026-11-20"),
            service="registry",
        ),
        "import into PostgreSQL": World(prepare=(IMPORT,), command=IMPORT_SECOND, service="postgres"),
        "bisect": World(
            prepare=((*BISECT, "--max-tests", "3", *TEST),),
            command=(*BISECT, *TEST),
            varies=("*/answer.*", "*/report.html", "*/probes/*", "*/stage0/*", "*/probes.jsonl"),
            says="It came with r7",
        ),
        "gate on PostgreSQL": World(prepare=(IMPORT,), command=GATE, service="postgres"),
        "prune": World(prepare=(IMPORT, IMPORT_SECOND), command=("prune", "--keep-days", "1")),
    }
)
