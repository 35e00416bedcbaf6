"""Does a night see faults in the libraries, and does its report name the library?

`nox -s bench_breakage`, `-- --faults 30 --seed 7`, `-- --quick` (four faults). Faults are drawn by how much people use
the names that they are planted in, and count where a typical call of that name gives another value. Each runs the jobs
of the CPU nightly and the conformance tests that execute the change, cheapest first, until one is red. `--used` names
the list of use.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import optax

from nightjar_ci.calls.recording import read_used
from nightjar_ci.causes.suspects import rank_functions
from nightjar_ci.formats.calls import Calls, read_calls
from tests.bench.breakage.draw import SCOPE, Fault, draw_faults, find_places
from tests.bench.breakage.lines import Lines, executes, record_lines
from tests.bench.breakage.night import Ended, record, run_night
from tests.bench.breakage.plant import planted, replaced
from tests.bench.breakage.recordings import join_calls, list_parts, name_part
from tests.bench.breakage.typical import Typical
from tests.bench.breakage.usage import read_usage
from tests.bench.table import NotMeasuredError, Row, finish, measure_part, print_rows
from tests.places import SHARED_DATA

USED = SHARED_DATA / "api-usage" / "symbols.json"
RED, NAMED = 0.90, 0.80  # goals, of the faults by weight
FAULTS = 120
MOST_DRAWS = 12  # changes that are drawn per fault wanted: most changes of a line change no typical call


@dataclass(slots=True)
class Tried:
    """A fault, the cells that execute the changed line with their parts that do, and the nights that ran with it."""

    fault: Fault
    calls: Calls
    executing: list[tuple[str, list[str]]]
    nights: list[Ended] = field(default_factory=list)

    @property
    def is_red(self) -> bool:
        """Whether a night was red."""
        return any(night.is_red for night in self.nights)

    def find_named(self) -> tuple[str, ...]:
        """The libraries that the reports name: of the red job, else by the jobs that are red and those that are not."""
        red = [night for night in self.nights if night.is_red]
        if not red or red[-1].named:
            return red[-1].named if red else ()
        cells = {calls.job: cell for cell, calls in self.calls.cells.items()}
        green = {*self.calls.cells}.difference(cell for cell, _ in self.executing)  # they run the installed code
        green.update(cells[night.job] for night in self.nights if not night.is_red)
        ranked = rank_functions([cells[night.job] for night in red], green, self.calls)
        return tuple(dict.fromkeys(suspect.library for suspect in ranked))

    @property
    def is_named(self) -> bool:
        """Whether the first library that is named has the fault."""
        return self.find_named()[:1] == (self.fault.place.library,)

    def __str__(self) -> str:
        if not self.nights:
            return f"NOT EXECUTED {self.fault}"
        last = self.nights[-1]
        if not self.is_red:
            ran = f"{len(self.nights)} of the {len(self.executing)} jobs that execute it"
            return f"SURVIVES {self.fault}: {ran}, the last with exit code {last.exit_code}"
        named = ", ".join(self.find_named()) or "nothing"
        return f"red {self.fault}: {last.job} ends with {last.exit_code}, names {named}"


def find_faults(used: Mapping[str, int], number: int, seed: int) -> Iterator[tuple[Fault, int]]:
    """Faults that change a typical call, each with the number of changes that were drawn up to it."""
    typical, found = Typical(), 0
    for drawn, fault in enumerate(draw_faults(used, read_usage(), seed), start=1):
        if found == number or drawn > MOST_DRAWS * number:
            return
        changed = typical.is_fault(fault)
        print(f"{'fault' if changed else 'no fault'}: {fault}", file=sys.stderr, flush=True)
        if changed:
            found += 1
            yield fault, drawn


def find_executing(fault: Fault, calls: Calls, lines: Lines) -> list[tuple[str, list[str]]]:
    """The cells that execute a changed line, those that take least time first, each with its parts that do.

    Of several parts the one that executes most lines of the function runs by itself first.
    """
    timed = list[tuple[float, str, list[str]]]()
    for cell, recorded in calls.cells.items():
        seen = {part: lines.get(name_part(cell, part), {}) for part in list_parts(cell)}
        parts = [part for part in seen if executes(seen[part], fault)]
        parts.sort(key=lambda part: len(seen[part][fault.place.id]), reverse=True)
        seconds = recorded.duration_s / len(seen)
        timed += [(seconds * len(some), cell, some) for some in (parts[:1], parts[1:]) if some]
    return [(cell, parts) for _, cell, parts in sorted(timed)]


def check_planting(calls: Calls, matrices: Mapping[str, str], folder: Path) -> None:
    """Tries a library that cannot be imported: were it not red, the jobs would not see what is planted.

    Raises:
        NotMeasuredError: it is not red.
    """
    cell = min(calls.cells, key=lambda cell: calls.cells[cell].duration_s)
    root = Path(optax.__file__).parents[1]
    with replaced(root, Path("optax", "__init__.py"), "raise ImportError('planted')\n", folder) as library:
        ended = run_night(matrices[cell], calls.cells[cell].job, library, folder / "control")
    if not ended.is_red or "planted" not in ended.said:
        raise NotMeasuredError(f"a library that cannot be imported ends with exit code {ended.exit_code}: {ended.said}")


def find_functions() -> list[str]:
    """All functions in which a fault can be planted."""
    return sorted({place.id for name in read_usage() for place in find_places(name)})


def try_fault(tried: Tried, matrices: Mapping[str, str], most: int | None, folder: Path) -> None:
    """Runs the cells that execute a fault, cheapest first, until one is red or `most` have run."""
    with planted(tried.fault, folder) as library:
        for number, (cell, parts) in enumerate(tried.executing[:most]):
            night = folder / f"night{number}"
            tried.nights.append(run_night(matrices[cell], tried.calls.cells[cell].job, library, night, parts))
            shutil.rmtree(night, ignore_errors=True)
            if tried.is_red:
                return


def list_goals() -> list[str]:
    """The names of the goals."""
    return ["faults that turn a job red, by use", "red ones whose library is named"]


def measure(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Draws the faults, tries each, and counts."""
    if not options.used.is_file():
        raise NotMeasuredError(f"{options.used} is missing; --used names a list of what people use")
    used = read_used(options.used)
    calls, matrices = join_calls([read_calls(path) for path in options.calls or record(folder / "recorded")])
    check_planting(calls, matrices, folder)
    lines = (
        json.loads(options.lines.read_text(encoding="utf-8"))
        if options.lines
        else record_lines(find_functions(), folder / "lines")
    )
    tries, drawn = list[Tried](), 0
    for fault, number in find_faults(used, options.faults, options.seed):
        drawn, tried = number, Tried(fault, calls, find_executing(fault, calls, lines))
        try_fault(tried, matrices, options.cells, folder)
        tries.append(tried)
        print(tried, flush=True)
        if options.log is not None:
            with options.log.open("a", encoding="utf-8") as log:
                line = {"fault": str(fault), "red": tried.is_red, "named": tried.is_named, "says": str(tried)}
                log.write(json.dumps(line) + "\n")
    return summarize(tries, drawn)


def summarize(tries: Sequence[Tried], drawn: int) -> list[Row]:
    """The rows of the table.

    A name is drawn by its use already: each fault counts once.
    """
    red = [tried for tried in tries if tried.is_red]
    rows = [
        Row(
            name=f"faults that turn a job red, by use (of {len(tries)})",
            ours=len(red) / max(1, len(tries)),
            goal=RED,
            better="higher",
        ),
        Row(
            name=f"red ones whose library is named (of {len(red)})",
            ours=sum(tried.is_named for tried in red) / max(1, len(red)),
            goal=NAMED,
            better="higher",
        ),
    ]
    for library in SCOPE:
        of_library = [tried for tried in tries if tried.fault.name.startswith(f"{library}.")]
        if of_library:
            share = sum(tried.is_red for tried in of_library) / len(of_library)
            rows.append(Row(name=f"  {library} (of {len(of_library)})", ours=share, better="higher"))
    return [
        *rows,
        Row(name="  faults that no cell executes", ours=sum(not tried.nights for tried in tries)),
        Row(name="  changes drawn that no typical call shows", ours=drawn - len(tries)),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the bench and prints its table."""
    parser = argparse.ArgumentParser(prog="nox -s bench_breakage --", description=__doc__)
    parser.add_argument("--faults", type=int, default=FAULTS, help=f"number of faults; default {FAULTS}")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="default: any")
    parser.add_argument("--quick", action="store_true", help="four faults")
    parser.add_argument("--used", type=Path, default=USED, help="JSON list of the names that people use")
    parser.add_argument("--calls", type=Path, action="append", help="a recording of the nightly; default: record now")
    parser.add_argument("--lines", type=Path, help="lines.json of an earlier run; default: trace them now")
    parser.add_argument("--cells", type=int, help="most cells to run for a fault; default: all that execute it")
    parser.add_argument("--log", type=Path, help="file to which each fault's outcome is added")
    options = parser.parse_args(arguments)
    if options.quick:
        options.faults = 4
    os.environ["JAX_PLATFORMS"] = "cpu"
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="nightjar-breakage-") as temporary:
        rows = measure_part(list_goals(), lambda: measure(options, Path(temporary)))
    print_rows(f"Faults in the libraries, seed {options.seed}", rows)
    return finish("bench_breakage", rows)


if __name__ == "__main__":
    sys.exit(main())
