"""Harmless rewrites of the libraries: what a release changes every week, and no night may call red.

In: functions that the jobs execute, and a seed. Out: how many of the rewritten libraries a night calls red.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping
from pathlib import Path

from nightjar_ci.formats.calls import Calls
from tests.bench.breakage.draw import Place, make_place
from tests.bench.breakage.mutate import Edit, Mutator, find_function
from tests.bench.breakage.night import run_night
from tests.bench.breakage.plant import replaced

REWRITES = 10
ANYWHERE = ("flax.nnx.", "optax.", "jax._src.numpy.", "jax._src.nn.", "jax._src.lax.", "grain.", "orbax.")


def draw_rewrites(calls: Calls, number: int, seed: int) -> list[tuple[Place, Edit]]:
    """Rewrites of executed functions, each of another kind than the one before where there is one."""
    source = random.Random(seed)
    functions = [function for function in calls.functions if function.startswith(ANYWHERE)]
    source.shuffle(functions)
    drawn: list[tuple[Place, Edit]] = []
    for function in functions:
        if len(drawn) == number:
            break
        module, _, name = function.partition(":")
        place = make_place(module, name) if "<" not in name else None
        if place is None:
            continue
        text = (place.root / place.file).read_text(encoding="utf-8")
        node = find_function(text, name)
        edits = [] if node is None else Mutator(text).find_rewrites(node)
        last = drawn[-1][1].kind if drawn else ""
        if edits := [edit for edit in edits if edit.kind != last]:
            drawn.append((place, source.choice(edits)))
    return drawn


def run_rewrites(calls: Calls, matrices: Mapping[str, str], number: int, seed: int, folder: Path) -> int:
    """The number of rewrites with which the cheapest cell that executes them is red."""
    red = 0
    for place, edit in draw_rewrites(calls, number, seed):
        text = (place.root / place.file).read_text(encoding="utf-8")
        with replaced(place.root, place.file, edit.apply(text), folder) as library:
            cell = calls.cells_that_run(place.id)[0]
            ended = run_night(matrices[cell], calls.cells[cell].job, library, folder / "harmless")
            shutil.rmtree(folder / "harmless", ignore_errors=True)
        red += ended.is_red
        print(f"{'RED' if ended.is_red else 'harmless'}: {edit.kind} in {place.id}: {ended.said}", flush=True)
    return red
