"""Faults of the disk: `nox -s faults` lets every call with which a command writes fail in turn, or kills it there.

After each fault: nothing that was committed is lost or torn, the exit code and the words are those of a fault of the
machine, and the same command then ends as if nothing had happened. `-- --only gate`, `-- --kind EIO`, `-- --at 12`
look at one. Exit code 1 where one was found, 4 where a command could not be tried.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from nightjar_ci.errors import ExitCode
from tests.faults.process import KINDS, End, compile_shim, import_for, run
from tests.faults.snapshot import Snapshot, find_differences, find_losses, find_torn, take
from tests.faults.worlds import WORLDS, fill

LIBRARY = "NIGHTJAR_FAULTS_LIBRARY"
FORBIDDEN = ("Traceback", "bug in nightjar", "nightjar_ci/")  # the last: a line of a traceback of ours
_SCRATCH = Path("/dev/shm") if Path("/dev/shm").is_dir() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A world, prepared, and what its command leaves without a fault."""

    name: str
    folder: Path
    before: Snapshot
    final: Snapshot
    other: Snapshot
    writes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of one command."""

    case: str
    kind: str
    at: int


def prepare(library: Path, scratch: Path, name: str) -> Case:
    """Makes a world and runs its command twice without a fault."""
    world, folder = WORLDS[name], scratch / "worlds" / name
    folder.mkdir(parents=True)
    fill(folder)
    for words in world.prepare:
        import_for(folder, words)
    before, ends, snapshots = take(folder), [], []
    import_for(_copy(folder, scratch), world.command)
    for _ in range(2):
        here = _copy(folder, scratch)
        ends.append(run(library, here, world.command))
        snapshots.append(take(here))
    if [end.code for end in ends] != [world.code, world.code]:
        raise SystemExit(f"error: {name} ends with {ends[0].code} without a fault:\n{ends[0].said}")
    return Case(name=name, folder=folder, before=before, final=snapshots[0], other=snapshots[1], writes=ends[0].writes)


def try_fault(library: Path, scratch: Path, case: Case, fault: Fault) -> list[str]:
    """What is wrong after a fault; empty if nothing."""
    world = WORLDS[case.name]
    here = _copy(case.folder, scratch)
    end = run(library, here, world.command, fault.at, fault.kind)
    after = take(here)
    wrong = [*_judge_end(end, world.code, fault.kind), *find_losses(case.before, case.final, case.other, after)]
    wrong += find_torn(here, iter(after.files))
    if end.code == world.code:  # a file of which the command said that it cannot be written may be missing
        differences = find_differences(case.final, case.other, after)
        said = {word for line in end.said.splitlines() if "cannot be written" in line for word in line.split()}
        wrong += [f"exit code {end.code}, but {text}" for text in differences if Path(text.split()[0]).name not in said]
    words, completes = (world.command, True) if world.again is None else world.again(here)
    again = run(library, here, words)
    if world.done is not None and world.done in again.said and again.code == ExitCode.USAGE:
        again = replace(again, code=world.code)
    if again.code != world.code:
        wrong.append(f"run again: exit code {again.code}, expected {world.code}: {again.said[-300:]}")
    elif completes:
        wrong += [f"run again: {text}" for text in find_differences(case.final, case.other, take(here))]
    return wrong


def _judge_end(end: End, expected: int, kind: str) -> list[str]:
    allowed = {expected, -9} if kind == "kill" else {expected, int(ExitCode.FAILED)}
    wrong = [f"says {text!r}: {end.said[-300:]}" for text in FORBIDDEN if text in end.said]
    if end.code not in allowed:
        wrong.append(f"exit code {end.code}, expected one of {sorted(allowed)}: {end.said[-300:]}")
    elif end.code == ExitCode.FAILED and "error: " not in end.said and "not_started" not in end.said:
        wrong.append(f"exit code 3 without an error: {end.said[-300:]}")
    return wrong


def _copy(folder: Path, scratch: Path) -> Path:
    """A fresh copy of a world, at the place that is this process's own."""
    here = scratch / str(os.getpid()) / "world"
    shutil.rmtree(here, ignore_errors=True)
    return Path(shutil.copytree(folder, here))


_state: tuple[Path, Path, dict[str, Case]]


def _try(fault: Fault) -> tuple[Fault, list[str]]:
    library, scratch, cases = _state
    return fault, try_fault(library, scratch, cases[fault.case], fault)


def main() -> int:
    """Tries every fault and prints a table of what was found."""
    global _state
    parser = argparse.ArgumentParser(prog="nox -s faults --", description=__doc__)
    parser.add_argument("--only", choices=WORLDS, help="only this command (default: all)")
    parser.add_argument("--kind", choices=KINDS, help="only this kind of fault (default: all)")
    parser.add_argument("--at", type=int, help="only this call")
    options = parser.parse_args()
    if LIBRARY not in os.environ:
        return _start_again()
    library = Path(os.environ.pop(LIBRARY))
    os.environ.pop("LD_PRELOAD")
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=_SCRATCH, prefix="nightjar-faults-") as name:
        scratch = Path(name)
        cases = {world: prepare(library, scratch, world) for world in ([options.only] if options.only else WORLDS)}
        faults = [
            Fault(case=case.name, kind=kind, at=at)
            for case in cases.values()
            for kind in ([options.kind] if options.kind else KINDS)
            for at in ([options.at] if options.at else range(1, case.writes + 1))
        ]
        _state = (library, scratch, cases)
        found: dict[Fault, list[str]] = {}
        with multiprocessing.get_context("fork").Pool() as pool, Progress(console=Console(stderr=True)) as progress:
            task = progress.add_task("faults", total=len(faults))
            for fault, wrong in pool.imap_unordered(_try, faults, chunksize=4):
                progress.advance(task)
                if wrong:
                    found[fault] = wrong
                    print(f"{fault.case} --kind {fault.kind} --at {fault.at}:", *wrong, sep="\n  ", flush=True)
    _print(cases, faults, found)
    lost = sum(len(wrong) for wrong in found.values())
    print(f"faults: {len(faults)} in {time.monotonic() - start:.0f} s, {len(found)} with {lost} findings")
    return 1 if found else 0


def _start_again() -> int:
    """This program with the library before the C library's functions."""
    with tempfile.TemporaryDirectory() as name:
        library = str(compile_shim(Path(name)))
        environ = {**os.environ, LIBRARY: library, "LD_PRELOAD": library, "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", "tests.faults", *sys.argv[1:]]
        return os.spawnve(os.P_WAIT, sys.executable, command, environ)


def _print(cases: dict[str, Case], faults: list[Fault], found: dict[Fault, list[str]]) -> None:
    table = Table(title="Faults of the disk")
    for column in ("command", "calls that write", "faults", "with findings"):
        table.add_column(column, justify="left" if column == "command" else "right")
    tried, failed = (Counter(fault.case for fault in group) for group in (faults, found))
    for name, case in cases.items():
        table.add_row(name, str(case.writes), str(tried[name]), str(failed[name]))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
