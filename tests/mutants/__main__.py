"""Mutation testing: `nox -s mutants` plants 200 mutants of one expression each and runs the nearest tests.

`-- --count 60 --seed 2` plants others, `-- --room ci/judges` those of one room, `-- --at FILE:LINE` every mutant of a
line. Exit code 1 where fewer than 85 % are killed.
"""

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.mutants.nearest import PACKAGES, find_tests
from tests.mutants.sites import Mutant, find_mutants
from tests.mutants.workspace import Outcome, Workspace, WorkspaceError
from tests.places import ROOT

GOAL = 0.85
NOTICED = ("killed", "timed out")
CELLS = tuple(f"models/nightjar_models/{name}/" for name in ("canaries", "conformance", "ecosystem"))


Trial = tuple[Mutant, Outcome]


def list_modules(room: str) -> list[str]:
    package, _, inner = room.partition("/")
    found = (ROOT / package / f"nightjar_{package}" / inner).rglob("*.py")
    modules = sorted(path.relative_to(ROOT).as_posix() for path in found)
    return [one for one in modules if not one.endswith("_pb2.py") and not one.startswith(CELLS)]


def choose(rooms: Sequence[str], total: int, seed: int) -> list[Mutant]:
    rng = random.Random(seed)
    modules = [module for room in rooms for module in list_modules(room)]
    groups = [group for module in modules for group in find_mutants(module, (ROOT / module).read_bytes())]
    return [rng.choice(group) for group in rng.sample(groups, min(total, len(groups)))]


def list_line(place: str) -> list[Mutant]:
    path, _, line = place.partition(":")
    if not path.endswith(".py"):
        raise WorkspaceError(f"{path} is not a Python module: other files have no mutants")
    groups = find_mutants(path, (ROOT / path).read_bytes())
    return [mutant for group in groups for mutant in group if line in ("", str(mutant.line))]


def try_all(chosen: Sequence[Mutant], jobs: int) -> Iterator[Trial]:
    """Tries mutants side by side, each worker in a copy of its own; yields them as they end."""
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        free: SimpleQueue[Workspace] = SimpleQueue()
        for number in range(jobs):
            free.put(Workspace(ROOT, Path(folder, str(number))))

        def run(mutant: Mutant) -> Trial:
            workspace = free.get()
            try:
                return mutant, workspace.try_mutant(mutant, find_tests(ROOT, mutant.path))
            finally:
                free.put(workspace)

        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(run, chosen)


def render_survivors(trials: Sequence[Trial]) -> Table:
    table = Table(title="survivors", title_justify="left")
    for name in ("place", "kind", "before", "after", "tests"):
        table.add_column(name, overflow="fold")
    for mutant, outcome in trials:
        if outcome not in NOTICED:
            before, after = (escape(" ".join(text.split())) for text in (mutant.before, mutant.after))
            table.add_row(mutant.place, mutant.kind, before, after, outcome)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="nox -s mutants --", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="how many mutants (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice (default: 1)")
    parser.add_argument("--room", action="append", help="this folder alone, such as ci/judges; several times: these")
    parser.add_argument(
        "--at", metavar="FILE[:LINE]", action="append", help="every mutant of this line, or of this file"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many at a time (default: one a core)")
    given = parser.parse_args(arguments)
    if given.count < 1 or given.jobs < 1:
        parser.error("--count and --jobs: expected 1 or more")
    try:
        if given.at:
            chosen = [mutant for place in given.at for mutant in list_line(place)]
        else:
            chosen = choose(given.room or PACKAGES, given.count, given.seed)
        if not chosen:
            parser.error("there is nothing to mutate at these places")
        trials: list[Trial] = []
        for mutant, outcome in try_all(chosen, given.jobs):
            trials.append((mutant, outcome))
            print(
                f"[{len(trials)}/{len(chosen)}] {outcome}: {mutant.place}: {mutant.kind}", file=sys.stderr, flush=True
            )
    except (WorkspaceError, OSError, SyntaxError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    Console(width=120).print(render_survivors(trials))
    killed = sum(outcome in NOTICED for _, outcome in trials)
    rate = killed / len(trials)
    print(f"mutants: {killed} of {len(trials)} killed ({rate:.0%}), goal {GOAL:.0%}", file=sys.stderr)
    return 0 if rate >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
