"""Do the conformance tests notice faults in the libraries that they try?

`nox -s bench_breakage`, `-- --faults 30 --seed 7`, `-- --quick` (four faults). Faults are drawn by how much people use
the names that they are planted in, and count where a typical call of that name gives another value. Each runs the files
of the conformance tests that execute the change, until one fails. `--used` names the list of use.
"""

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import optax

from tests.bench.breakage.conformance import find_executing, is_green, record_lines
from tests.bench.breakage.draw import SCOPE, Fault, draw_faults, find_places
from tests.bench.breakage.plant import add_to_path, planted, replaced
from tests.bench.breakage.typical import Typical
from tests.bench.breakage.usage import read_usage, read_used
from tests.bench.table import NotMeasuredError, Row, finish, measure_part, print_rows
from tests.places import SHARED_DATA

USED = SHARED_DATA / "api-usage" / "symbols.json"
RED = 0.90  # goal, of the faults by weight
FAULTS = 120
MOST_DRAWS = 12  # changes that are drawn per fault wanted: most changes of a line change no typical call
GOAL = "faults that fail a test, by use"


@dataclass(frozen=True, slots=True)
class Tried:
    """A fault, the files that execute it, and the one that failed; empty where none did."""

    fault: Fault
    executing: list[str]
    failed: str

    def __str__(self) -> str:
        if not self.executing:
            return f"NOT EXECUTED {self.fault}"
        return f"{self.failed} fails: {self.fault}" if self.failed else f"SURVIVES {self.executing}: {self.fault}"


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


def check_planting(folder: Path) -> None:
    """Tries a library that cannot be imported: were its tests green, they would not see what is planted."""
    root = Path(optax.__file__).parents[1]
    with replaced(root, Path("optax", "__init__.py"), "raise ImportError('planted')\n", folder) as library:
        if is_green("test_optax", add_to_path(library, os.environ)):
            raise NotMeasuredError("tests of a library that cannot be imported are green")


def try_fault(fault: Fault, executing: list[str], folder: Path) -> Tried:
    with planted(fault, folder) as library:
        environ = add_to_path(library, os.environ)
        failed = next((file for file in executing if not is_green(file, environ)), "")
    return Tried(fault, executing, failed)


def measure(options: argparse.Namespace, folder: Path) -> list[Row]:
    if not options.used.is_file():
        raise NotMeasuredError(f"{options.used} is missing; --used names a list of what people use")
    check_planting(folder)
    if options.lines.is_file():
        lines = json.loads(options.lines.read_text(encoding="utf-8"))
    else:
        functions = sorted({place.id for name in read_usage() for place in find_places(name)})
        lines = record_lines(functions, folder / "lines")
        options.lines.write_text(json.dumps(lines), encoding="utf-8")
    tries, drawn = list[Tried](), 0
    for fault, number in find_faults(read_used(options.used), options.faults, options.seed):
        drawn = number
        tries.append(try_fault(fault, find_executing(fault, lines), folder))
        print(tries[-1], flush=True)
    rows = [Row(f"{GOAL} (of {len(tries)})", ours=share(tries), goal=RED, better="higher")]
    for library in SCOPE:
        of_library = [tried for tried in tries if tried.fault.name.startswith(f"{library}.")]
        if of_library:
            rows.append(Row(f"  {library} (of {len(of_library)})", ours=share(of_library), better="higher"))
    return [
        *rows,
        Row("  faults that no test executes", sum(not tried.executing for tried in tries)),
        Row("  changes drawn that no typical call shows", drawn - len(tries)),
    ]


def share(tries: list[Tried]) -> float:
    """Of faults that a test notices; a name is drawn by its use already, so each fault counts once."""
    return sum(bool(tried.failed) for tried in tries) / max(1, len(tries))


def main() -> int:
    parser = argparse.ArgumentParser(prog="nox -s bench_breakage --", description=__doc__)
    parser.add_argument("--faults", type=int, default=FAULTS, help=f"number of faults; default {FAULTS}")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="default: any")
    parser.add_argument("--quick", action="store_true", help="four faults")
    parser.add_argument("--used", type=Path, default=USED, help="JSON list of the names that people use")
    parser.add_argument("--lines", type=Path, help="file of an earlier run with the traced lines, or for them")
    options = parser.parse_args()
    if options.quick:
        options.faults = 4
    os.environ["JAX_PLATFORMS"] = "cpu"
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="nightjar-breakage-") as temporary:
        folder = Path(temporary)
        options.lines = options.lines or folder / "lines.json"
        rows = measure_part([GOAL], lambda: measure(options, folder))
    print_rows(f"Faults in the libraries, seed {options.seed}", rows)
    return finish("bench_breakage", rows)


if __name__ == "__main__":
    sys.exit(main())
