"""Faults of the disk: `nox -s faults` lets every call with which a command writes fail in turn, or kills it there.

After each fault: nothing that was committed is lost or torn, the exit code and the words are those of a fault of the
machine, and the same command then ends as if nothing had happened. `-- --only gate`, `-- --kind EIO`, `-- --at 12`
look at one. Exit code 1 where one was found, 4 where a command could not be tried.
"""

import argparse
import gc
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import venv
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from nightjar_ci.errors import ExitCode
from tests.faults.process import KINDS, End, compile_shim, import_for, run
from tests.faults.services import SERVICES, Service
from tests.faults.snapshot import Snapshot, digest_state, find_differences, find_losses, find_torn, take
from tests.faults.worlds import WORLDS, World, fill
from tests.machine import PARTS, LackError

LIBRARY = "NIGHTJAR_FAULTS_LIBRARY"
FORBIDDEN = ("Traceback", "bug in nightjar", "nightjar_ci/")  # the last: a line of a traceback of ours
LINE_EACH = 100  # faults, where no terminal shows the progress
_SCRATCH = Path("/dev/shm") if Path("/dev/shm").is_dir() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    folder: Path
    before: Snapshot
    final: Snapshot
    other: Snapshot
    writes: str
    service: Service | None

    def copy(self, scratch: Path) -> tuple[Path, str]:
        """A fresh copy of the world, at the place that is this process's own, and the name of its service's copy."""
        here = scratch / str(os.getpid()) / "world"
        shutil.rmtree(here, ignore_errors=True)
        return Path(shutil.copytree(self.folder, here)), self.service.copy() if self.service else ""

    def variables(self, name: str) -> Mapping[str, str]:
        return self.service.variables(name) if self.service else {}

    def take(self, here: Path, name: str) -> Snapshot:
        return take(here, self.service.rows(name) if self.service else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    case: str
    kind: str
    at: int


def prepare(library: Path, scratch: Path, name: str, service: Service | None) -> Case:
    world, folder = WORLDS[name], scratch / "worlds" / name
    folder.mkdir(parents=True)
    fill(folder)
    variables = service.variables() if service else {}
    for words in world.prepare:
        import_for(folder, words, variables)
    if world.edit is not None:
        world.edit(folder)
    empty = Snapshot({}, {})
    case = Case(name=name, folder=folder, before=empty, final=empty, other=empty, writes="", service=service)
    here, copy = case.copy(scratch)
    before, ends, snapshots = case.take(here, copy), [], []
    import_for(here, world.command, case.variables(copy))
    for _ in range(2):
        here, copy = case.copy(scratch)
        ends.append(run(library, here, world.command, case.variables(copy)))
        snapshots.append(case.take(here, copy))
    if [end.code for end in ends] != [world.code, world.code]:
        raise SystemExit(f"error: {name} ends with {ends[0].code} without a fault:\n{ends[0].said}")
    return replace(case, before=before, final=snapshots[0], other=snapshots[1], writes=ends[0].writes)


def try_fault(library: Path, scratch: Path, case: Case, fault: Fault) -> list[str]:
    world = WORLDS[case.name]
    here, copy = case.copy(scratch)
    variables = case.variables(copy)
    end = run(library, here, world.command, variables, fault.at, fault.kind)
    after = case.take(here, copy)
    wrong = _judge_end(end, world.code, fault.kind)
    wrong += _leave_out(world, find_losses(case.before, case.final, case.other, after))
    wrong += [*find_torn(here, iter(after.files)), *(case.service.find_torn(copy) if case.service else ())]
    if end.code == world.code:  # a file of which the command said that it cannot be written may be missing
        differences = _leave_out(world, find_differences(case.final, case.other, after))
        said = {word for line in end.said.splitlines() if "cannot be written" in line for word in line.split()}
        wrong += [f"exit code {end.code}, but {text}" for text in differences if Path(text.split()[0]).name not in said]
    if case.service is not None:  # what a server keeps is not all in its rows
        return [*wrong, *_run_again(library, case, here, copy)]
    state = (case.name, digest_state(here))
    if state not in _again:
        _again[state] = _run_again(library, case, here, copy)
    return [*wrong, *_again[state]]


# What was wrong after the command was run again, by the world's state to the byte: the same state is run once.
_again: dict[tuple[str, str], list[str]] = {}


def _run_again(library: Path, case: Case, here: Path, copy: str) -> list[str]:
    """What is wrong after a user ran the command again; empty if nothing."""
    world, variables, wrong = WORLDS[case.name], case.variables(copy), []
    words, completes = (world.command, True) if world.again is None else world.again(here)
    again = run(library, here, words, variables)
    if world.done is not None and world.done in again.said and again.code == ExitCode.USAGE:
        again = replace(again, code=world.code)
    if again.code != world.code:
        wrong.append(f"run again: exit code {again.code}, expected {world.code}: {again.said[-300:]}")
    elif world.says not in again.said:
        wrong.append(f"run again: does not say {world.says!r}: {again.said[-300:]}")
    elif completes:
        differences = _leave_out(world, find_differences(case.final, case.other, case.take(here, copy)))
        wrong += [f"run again: {text}" for text in differences]
    return wrong


def _leave_out(world: World, sentences: Iterable[str]) -> list[str]:
    """Sentences without those on files that vary; a row that was there and is lost counts all the same."""
    return [
        text
        for text in sentences
        if "has lost" in text or not any(fnmatch(text.split()[0], pattern) for pattern in world.varies)
    ]


def _judge_end(end: End, expected: int, kind: str) -> list[str]:
    allowed = {expected, -9} if kind == "kill" else {expected, int(ExitCode.FAILED)}
    wrong = [f"says {text!r}: {end.said[-300:]}" for text in FORBIDDEN if text in end.said]
    if end.code not in allowed:
        wrong.append(f"exit code {end.code}, expected one of {sorted(allowed)}: {end.said[-300:]}")
    elif end.code == ExitCode.FAILED and "error: " not in end.said and "not_started" not in end.said:
        wrong.append(f"exit code 3 without an error: {end.said[-300:]}")
    return wrong


_state: tuple[Path, Path, dict[str, Case]]


def _try(fault: Fault) -> tuple[Fault, list[str]]:
    library, scratch, cases = _state
    return fault, try_fault(library, scratch, cases[fault.case], fault)


def main() -> int:
    global _state
    parser = argparse.ArgumentParser(prog="nox -s faults --", description=__doc__)
    parser.add_argument("--only", choices=WORLDS, help="only this command (default: all)")
    parser.add_argument("--kind", choices=KINDS, help="only this kind of fault (default: all)")
    parser.add_argument("--at", type=int, help="only this call")
    parser.add_argument(
        "--jobs", type=int, default=2 * (os.cpu_count() or 1), help="processes (default: two for each core)"
    )
    options = parser.parse_args()
    if LIBRARY not in os.environ:
        return _start_again()
    library = Path(os.environ.pop(LIBRARY))
    os.environ.pop("LD_PRELOAD")
    start = time.monotonic()
    names = [options.only] if options.only else list(WORLDS)
    with tempfile.TemporaryDirectory(dir=_SCRATCH, prefix="nightjar-faults-") as name, ExitStack() as servers:
        scratch = Path(name)
        cases = {world: _open_case(library, scratch, world, servers) for world in names}
        faults = [
            Fault(case=case.name, kind=kind, at=at)
            for case in cases.values()
            for kind in ([options.kind] if options.kind else KINDS)
            for at, letter in enumerate(case.writes, 1)
            if letter in KINDS[kind].of and options.at in (None, at)
        ]
        _state = (library, scratch, cases)
        found: dict[Fault, list[str]] = {}
        gc.freeze()  # what is imported is not looked through, hence not copied, in each forked process
        with (
            multiprocessing.get_context("fork").Pool(options.jobs) as pool,
            Progress(console=Console(stderr=True)) as progress,
        ):
            task = progress.add_task("faults", total=len(faults))
            for number, (fault, wrong) in enumerate(pool.imap_unordered(_try, faults, chunksize=4), 1):
                progress.advance(task)
                if number % LINE_EACH == 0 and not progress.console.is_terminal:
                    print(f"{number} of {len(faults)} faults, {time.monotonic() - start:.0f} s", file=sys.stderr)
                if wrong:
                    found[fault] = wrong
                    print(f"{fault.case} --kind {fault.kind} --at {fault.at}:", *wrong, sep="\n  ", flush=True)
    _print(cases, faults, found)
    lost = sum(len(wrong) for wrong in found.values())
    print(f"faults: {len(faults)} in {time.monotonic() - start:.0f} s, {len(found)} with {lost} findings")
    return 1 if found else 0


def _open_case(library: Path, scratch: Path, name: str, servers: ExitStack) -> Case:
    """A prepared world, and its server, which runs until the end."""
    service = None
    if (kind := WORLDS[name].service) is not None:
        try:
            service = servers.enter_context(SERVICES[kind](scratch / "servers" / name))
        except LackError as error:
            print(f"error: {name} cannot be tried: {error}.\nHint: {PARTS[kind].brought_by}", file=sys.stderr)
            raise SystemExit(int(ExitCode.CANNOT_TELL)) from None
    return prepare(library, scratch, name, service)


def _start_again() -> int:
    """This program with the library before the C library's functions.

    Jobs have a bare environment: this one's packages may come from a checkout, whose state git would tell in each run.
    """
    with tempfile.TemporaryDirectory() as name:
        library, bare = str(compile_shim(Path(name))), Path(name, "environment")
        venv.create(bare)
        environ = {**os.environ, LIBRARY: library, "LD_PRELOAD": library, "JAX_PLATFORMS": "cpu"}
        environ["VIRTUAL_ENV"] = str(bare)
        command = [sys.executable, "-m", "tests.faults", *sys.argv[1:]]
        return os.spawnve(os.P_WAIT, sys.executable, command, environ)


def _print(cases: dict[str, Case], faults: list[Fault], found: dict[Fault, list[str]]) -> None:
    table = Table(title="Faults of the disk")
    for column in ("command", "calls that write", "faults", "with findings"):
        table.add_column(column, justify="left" if column == "command" else "right")
    tried, failed = (Counter(fault.case for fault in group) for group in (faults, found))
    for name, case in cases.items():
        table.add_row(name, str(len(case.writes)), str(tried[name]), str(failed[name]))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
