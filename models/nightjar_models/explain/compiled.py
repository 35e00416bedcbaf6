"""A program operation by operation against the same one compiled, on one device or split over a mesh.

In: a traced function. Out: the first operation whose compiled result differs by more than rounding explains. Rounding
is measured, not assumed: the program runs once more with every argument moved by one unit in the last place. By as much
as a result then moves, rounding may move it, so that a gradient that is zero but for its rounding raises no alarm.

The operation is found by cutting the program: all values that cross a cut are compiled together, as the compiler fuses
and partitions them, and compared with those of single operations. Once a value is wrong, so are those made from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from nightjar_models.explain.environments import CRASH, Request, crashes
from nightjar_models.explain.flat import Flat, evaluate, flatten, run_compiled
from nightjar_models.explain.judge import (
    MOST_ROUNDINGS,
    TINY,
    Difference,
    find_epsilon,
    find_scale,
    overflow_alike,
    widen,
)
from nightjar_models.explain.program import Traced, trace_preset
from nightjar_models.explain.record import to_numpy


@dataclass(frozen=True, slots=True)
class Deviation:
    """The result that deviates most.

    Attributes:
        number: of the result.
        relative: the largest difference over the size of the values (`find_scale`).
        excess: the largest difference over what rounding does to the result; above `MOST_ROUNDINGS` it is a fault.
    """

    number: int
    relative: float
    excess: float


def explain_compiled(
    traced: Traced, progress: Callable[[str], None], request: Request | None = None
) -> Difference | None:
    """Compares single operations with the compiled program.

    Args:
        request: of the same program, so that another process runs it compiled first, which may crash.

    Returns:
        The first operation that is compiled wrongly (kind fault), what rounding has done (kind rounding), or None if
        all results are equal bit for bit.
    """
    flat = flatten(traced)
    moved, last = move(traced.arguments, find_coarsest(flat.operations)), len(flat.operations)
    if request is not None and crashes(request, last):
        first = find_first_wrong(last, partial(crashes, request), progress)
        return Difference(kind=CRASH, where=flat.places[first - 1])

    def look(count: int) -> Deviation:
        cut = flat.cut(count)
        compiled = run_compiled(traced if count == last else cut, traced.arguments)
        ours, near = (list(map(to_numpy, evaluate(cut.jaxpr, values))) for values in (traced.arguments, moved))
        return measure(ours, near, compiled)

    progress(f"running {last} operations one by one, and compiled")
    whole = look(last)
    if not whole.excess:
        return None
    if whole.excess <= MOST_ROUNDINGS:
        return describe_rounding(whole, traced.results)
    first = find_first_wrong(last, lambda count: look(count).excess > MOST_ROUNDINGS, progress)
    result = traced.results[whole.number]
    return Difference(kind="fault", where=flat.places[first - 1], relative=look(first).relative, result=result)


def find_first_wrong(count: int, is_wrong: Callable[[int], bool], progress: Callable[[str], None]) -> int:
    """The smallest number of first operations that are wrong if they are compiled together; all of them are."""
    right, wrong = 0, count
    while wrong - right > 1:
        middle = (right + wrong) // 2
        progress(f"compiling the first {middle} operations")
        right, wrong = (right, middle) if is_wrong(middle) else (middle, wrong)
    return wrong


def explain_mesh(preset: str, settings: Sequence[str], mesh: str, progress: Callable[[str], None]) -> Difference | None:
    """Compares loss and gradients of a preset on one device with those over a mesh, all compiled.

    Returns:
        As `explain_compiled`; for a fault the operation that is compiled wrongly, or else the first one in which the
        two programs differ.
    """
    one, many = (trace_preset(preset, settings, shape, spread=True) for shape in ("dp1", mesh))
    moved = move(one.arguments, find_coarsest(flatten(one).operations))
    progress(f"compiling {len(one.results)} results for one device, and for {mesh}")
    ours, near, theirs = (run_compiled(*side) for side in ((one, one.arguments), (one, moved), (many, many.arguments)))
    whole = measure(ours, near, theirs)
    if not whole.excess:
        return None
    if whole.excess <= MOST_ROUNDINGS:
        return describe_rounding(whole, one.results)
    found = explain_compiled(many, progress)
    where = found.where if found is not None and found.kind == "fault" else find_first(one, many, moved)
    return Difference(kind="fault", where=where, relative=whole.relative, result=one.results[whole.number])


def find_first(one: Traced, many: Traced, moved: Sequence[Any]) -> str:
    """The first operation of a program for a mesh whose result differs from the same line's on one device."""
    programs = flatten(one), flatten(many)
    ours, near, theirs = (
        list_results(program, arguments)
        for program, arguments in zip((*programs[:1], *programs), (one.arguments, moved, many.arguments), strict=True)
    )
    keys = [
        [(place, value.shape) for place, value in zip(program.places, values, strict=True)]
        for program, values in zip(programs, (ours, theirs), strict=True)
    ]
    for block in SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_matching_blocks():
        for left, right in zip(range(block.a, block.a + block.size), range(block.b, block.b + block.size), strict=True):
            if measure([ours[left]], [near[left]], [theirs[right]]).excess > MOST_ROUNDINGS:
                return programs[1].places[right]
    return "an unknown line"


def list_results(program: Flat, arguments: Sequence[Any]) -> list[Any]:
    """The first result of each operation, as NumPy arrays."""
    made: list[Any] = []
    evaluate(program.closed, arguments, lambda results: made.append(to_numpy(results[0])))
    return made


def describe_rounding(worst: Deviation, names: Sequence[str]) -> Difference:
    """The answer if no result differs by more than rounding explains."""
    return Difference(kind="rounding", where="", relative=worst.relative, result=names[worst.number])


def find_coarsest(operations: Sequence[JaxprEqn]) -> float:
    """The unit in the last place of the coarsest float type of a program."""
    types = {variable.aval.dtype for operation in operations for variable in operation.outvars}  # type: ignore[attr-defined]
    floats = [find_epsilon(dtype) for dtype in types if jnp.issubdtype(dtype, jnp.floating)]
    return max(floats, default=0.0)


def move(arguments: Sequence[Any], epsilon: float) -> list[Any]:
    """The arguments, their floats larger or smaller by this part; where they lie on the devices stays."""
    rng = np.random.default_rng(0)

    def change(value: Any) -> Any:
        if not jnp.issubdtype(value.dtype, jnp.floating):
            return value
        factor = 1 + epsilon * rng.choice((-1.0, 1.0), size=np.shape(value))
        moved = (np.asarray(value, dtype=np.float64) * factor).astype(value.dtype)
        return jax.device_put(moved, value.sharding) if getattr(value, "committed", False) else jnp.asarray(moved)

    return [change(value) for value in arguments]


def measure(ours: Sequence[Any], near: Sequence[Any], theirs: Sequence[Any]) -> Deviation:
    """The result that deviates most from ours, in multiples of the change that moved arguments made."""
    worst = Deviation(0, 0.0, 0.0)
    for number, (own, moved, other) in enumerate(zip(ours, near, theirs, strict=True)):
        relative = excess = np.inf
        if np.array_equal(own, other, equal_nan=jnp.issubdtype(own.dtype, jnp.inexact)):
            continue
        if not jnp.issubdtype(own.dtype, jnp.inexact):
            if np.array_equal(own, moved):  # an index or a mask that rounding leaves as it is
                return Deviation(number, relative, excess)
            continue
        first, second, third = map(widen, (own, moved, other))
        if overflow_alike(first, third):
            differs = np.isfinite(first) & np.isfinite(second) & (first != third)
            if not differs.any():
                continue
            scale = find_scale(first, differs)
            rounding = float(np.abs(first[differs] - second[differs]).max())
            difference = float(np.abs(first[differs] - third[differs]).max())
            relative = difference / scale
            excess = difference / max(rounding, find_epsilon(own.dtype) * scale, TINY)
        elif not overflow_alike(first, second):
            continue  # rounding alone makes it overflow
        if excess > worst.excess:
            worst = Deviation(number, relative, excess)
    return worst
