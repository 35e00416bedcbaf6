"""Mutation testing: `nox -s mutants` plants 200 mutants of one expression each and runs the nearest tests.

`-- --count 60 --seed 2` plants others, `-- --only judges` those of one area, `-- --at FILE:LINE` every mutant of a
line. Exit code 1 where fewer than 85 % are killed.
"""

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.mutants.nearest import find_tests
from tests.mutants.sites import Mutant, find_mutants
from tests.mutants.workspace import Outcome, Unmutated, Workspace, WorkspaceError
from tests.places import ROOT

AREAS = {
    "judges": "ci/nightjar_ci/judges",
    "gate": "ci/nightjar_ci/gate",
    "bisect": "ci/nightjar_ci/bisect",
    "images": "ci/nightjar_ci/images",
    "profiling": "profiling/nightjar_profiling",
    "models": "models/nightjar_models",
    "report": "ci/nightjar_ci/report",
    "site": "ci/nightjar_ci/site",
}
DEFAULT_AREAS = ("judges", "gate", "bisect", "images", "profiling")
GOAL = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A mutant, the area of the product that it is in, and what its nearest tests said."""

    area: str
    mutant: Mutant
    tests: tuple[str, ...]
    outcome: Outcome

    @property
    def noticed(self) -> bool:
        return self.outcome in ("killed", "timed out")


def list_modules(area: str) -> list[str]:
    modules = (path.relative_to(ROOT).as_posix() for path in (ROOT / AREAS[area]).rglob("*.py"))
    return sorted(module for module in modules if not module.endswith("_pb2.py"))


def choose(areas: Sequence[str], total: int, seed: int) -> list[tuple[str, Mutant]]:
    """Mutants by chance, as many in each area; within an area every expression is as likely."""
    rng = random.Random(seed)
    chosen = []
    for number, area in enumerate(areas):
        share = total // len(areas) + (number < total % len(areas))
        groups = [
            group for module in list_modules(area) for group in find_mutants(module, (ROOT / module).read_bytes())
        ]
        chosen += [(area, rng.choice(group)) for group in rng.sample(groups, min(share, len(groups)))]
    return chosen


def list_line(place: str) -> list[tuple[str, Mutant]]:
    """Every mutant of one line, `FILE:LINE`, or of a whole file."""
    path, _, line = place.partition(":")
    if not path.endswith(".py"):
        raise WorkspaceError(f"{path} is not a Python module: other files have no mutants")
    groups = find_mutants(path, (ROOT / path).read_bytes())
    area = next((name for name, folder in AREAS.items() if path.startswith(folder)), "other")
    return [(area, mutant) for group in groups for mutant in group if line in ("", str(mutant.line))]


def try_all(chosen: Sequence[tuple[str, Mutant]], jobs: int) -> Iterator[Trial]:
    """Tries mutants side by side, each worker in a copy of its own; yields them as they end."""
    nearest = {mutant.path: tuple(find_tests(ROOT, mutant.path)) for _, mutant in chosen}
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        free: SimpleQueue[Workspace] = SimpleQueue()
        unmutated = Unmutated()
        for number in range(jobs):
            free.put(Workspace(ROOT, Path(folder, str(number)), unmutated))

        def run(item: tuple[str, Mutant]) -> Trial:
            workspace = free.get()
            try:
                return _try(workspace, *item, nearest[item[1].path])
            finally:
                free.put(workspace)

        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(run, chosen)


def _try(workspace: Workspace, area: str, mutant: Mutant, tests: tuple[str, ...]) -> Trial:
    return Trial(area=area, mutant=mutant, tests=tests, outcome=workspace.try_mutant(mutant, tests))


def render_table(trials: Sequence[Trial]) -> Table:
    """Counts by area; a mutant is killed, too, where its tests no longer end."""
    table = Table(title="mutants", title_justify="left")
    for name in ("area", "mutants", "killed", "of these timed out", "survived", "killed %"):
        table.add_column(name, justify="left" if name == "area" else "right")
    for area in [*dict.fromkeys(trial.area for trial in trials), "all"]:
        own = [trial for trial in trials if area in (trial.area, "all")]
        killed = sum(trial.noticed for trial in own)
        timed_out = sum(trial.outcome == "timed out" for trial in own)
        counts = (len(own), killed, timed_out, len(own) - killed)
        table.add_row(area, *map(str, counts), f"{killed / len(own):.0%}")
    return table


def render_survivors(trials: Sequence[Trial]) -> str:
    """A line for each mutant that no test noticed."""
    lines = []
    for trial in trials:
        if not trial.noticed:
            mutant = trial.mutant
            before, after = (" ".join(text.split()) for text in (mutant.before, mutant.after))
            lines.append(f"{mutant.place}: {mutant.kind}: {before} -> {after} ({trial.outcome})")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="nox -s mutants --", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="how many mutants (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice (default: 1)")
    parser.add_argument("--only", choices=AREAS, action="append", help="this area; may be given several times")
    parser.add_argument(
        "--at", metavar="FILE[:LINE]", action="append", help="every mutant of this line, or of this file"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many at a time (default: one a core)")
    given = parser.parse_args(arguments)
    if given.count < 1 or given.jobs < 1:
        parser.error("--count and --jobs: expected 1 or more")
    areas = list(dict.fromkeys(given.only or DEFAULT_AREAS))
    try:
        if given.at:
            chosen = [item for place in given.at for item in list_line(place)]
        else:
            chosen = choose(areas, given.count, given.seed)
        if not chosen:
            parser.error("there is nothing to mutate at these places")
        trials = []
        console = Console(stderr=True)
        with Progress(console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task("mutants", total=len(chosen))
            for trial in try_all(chosen, given.jobs):
                trials.append(trial)
                progress.advance(task)
                if not console.is_terminal:
                    place = f"{trial.mutant.place}: {trial.mutant.kind}"
                    print(f"[{len(trials)}/{len(chosen)}] {trial.outcome}: {place}", file=sys.stderr, flush=True)
    except (WorkspaceError, OSError, SyntaxError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    Console(width=120).print(render_table(trials))
    print(render_survivors(trials))
    killed = sum(trial.noticed for trial in trials)
    print(f"mutants: {killed} of {len(trials)} killed, goal {GOAL:.0%}", file=sys.stderr)
    return 0 if killed >= GOAL * len(trials) else 1


if __name__ == "__main__":
    sys.exit(main())
