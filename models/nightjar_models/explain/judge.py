"""Where two programs part: the first operation whose operands both runs have and whose result only one of them has.

In: two `Record`s of the same arguments. Out: the operations at which each leaves the other, found backwards from the
results that differ, so that values that one program only lays out otherwise are passed over. Then the size of the
difference and its class:

- *rounding*: most operations have one on the other side that differs by a few roundings, or all results do (another
  order of a sum);
- *numerics*: another type or precision, and no more than that type's rounding explains;
- *undefined*: an index out of bounds where it was promised to be within them, or memory that nothing was written to;
- *fault*: more than that, or something that does not round: a mask, an index, a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from nightjar_models.errors import InputError
from nightjar_models.explain.record import UNDEFINED, Operation, Record, record

# Roundings that separate two orders of a sum: a random walk over the 4,000 terms of a long one.
MOST_ROUNDINGS = 64.0
# Of the coarsest type that trains, bfloat16: a softmax or a norm in it differs by a few of its roundings.
MOST_NUMERICS = 16 * 2.0**-8
TINY = float(np.finfo(np.float32).tiny)  # numbers below it are subnormal: processors may round them to zero
MOST_OPERATIONS, WINDOW = 40, 12  # of one side, each compared with as many before and behind it on the other side
_FLOATS = ("float", "bfloat16", "complex")

Run = Callable[[Collection[int]], Record]  # runs a program; the first results of these operations are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Parting:
    """The operations of two runs that lead to results that differ, in order, and the first of them in each."""

    left: tuple[Operation, ...]
    right: tuple[Operation, ...]
    first_left: Operation | None
    first_right: Operation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The answer.

    Attributes:
        kind: rounding, numerics, undefined, fault, not deterministic, or a crash.
        where: the line, operation, type and layer; empty if many small roundings make the difference.
        other: the same of the other side, if it is another operation.
        relative: the largest difference over the size of the values (`find_scale`); None if none could be compared.
        roundings: the same in units of the last place of the type.
        result: the first result of the function that differs, by name.
    """

    kind: str
    where: str
    other: str | None = None
    relative: float | None = None
    roundings: float | None = None
    result: str = ""

    def __str__(self) -> str:
        size = "" if self.relative in (None, np.inf) else f", {self.relative:.2g} of the values' size"
        if self.roundings is not None and self.kind == "rounding":
            size = f", {max(1, round(self.roundings))} ulp"
        other = f"; the other side: {self.other}" if self.other else ""
        result = f" (seen in {self.result})" if self.result else ""
        if not self.where:
            return f"no difference beyond rounding: at most {self.relative:.2g} of the values' size{result}"
        return f"first differs at {self.where}: {self.kind}{size}{other}{result}"


def find_parting(left: Record, right: Record) -> Parting | None:
    """The operations that lead to the difference; None if all results are equal bit for bit."""
    pairs = zip(left.results, right.results, strict=True)
    differing = [number for number, (ours, theirs) in enumerate(pairs) if ours != theirs]
    if not differing:
        return None
    left_operations = _trace_back(left, [left.results[number] for number in differing], right.known())
    right_operations = _trace_back(right, [right.results[number] for number in differing], left.known())
    return Parting(
        left=left_operations,
        right=right_operations,
        first_left=next(_frontier(left_operations, left, right.known()), None),
        first_right=next(_frontier(right_operations, right, left.known()), None),
    )


def _trace_back(record: Record, results: Sequence[str], known: frozenset[str]) -> tuple[Operation, ...]:
    """The operations that make values that the other run lacks and that the results depend on."""
    makers: dict[str, Operation] = {}
    for operation in record.operations:
        for digest in operation.results:
            makers.setdefault(digest, operation)
    waiting, seen = [digest for digest in results if digest not in known], dict[int, Operation]()
    while waiting:
        maker = makers.get(waiting.pop())
        if maker is not None and maker.place not in seen:
            seen[maker.place] = maker
            waiting += [digest for digest in maker.operands if digest not in known]
    return tuple(seen[number] for number in sorted(seen))


def _frontier(operations: Sequence[Operation], record: Record, known: frozenset[str]) -> Iterator[Operation]:
    """Those whose operands both runs have; an array that no operation made is a constant of the program."""
    made = record.known()
    for operation in operations:
        if all(digest in known or digest not in made for digest in operation.operands):
            yield operation


def choose_pairs(parting: Parting) -> list[tuple[int, int]]:
    """Operations of both sides to compare by value: of one shape, and near each other in order."""
    right = parting.right[: MOST_OPERATIONS + WINDOW]
    return [
        (operation.place, other.place)
        for number, operation in enumerate(parting.left[:MOST_OPERATIONS])
        for other in right[max(0, number - WINDOW) : number + WINDOW + 1]
        if _shape(other) == _shape(operation)
    ]


def _shape(operation: Operation) -> str:
    return operation.types[0].partition("[")[2]


def classify(
    parting: Parting, pairs: Sequence[tuple[int, int]], ours: Record, theirs: Record, result: str
) -> Difference:
    """The kind and size of a difference of two runs, whose values are kept for these pairs."""
    nearest: dict[int, tuple[float, float]] = {}  # to each operation of the left side, on the other
    for left, right in pairs:
        size = compare(ours.kept[left], theirs.kept[right])
        if size is not None:
            nearest[left] = min(size, nearest.get(left, size))
    sizes = list(nearest.values())
    first = sizes[0] if sizes else None
    middle, upper = (sorted(sizes)[len(sizes) * part // 4] if sizes else None for part in (2, 3))
    coarse = _types(parting.left) != _types(parting.right) or _details(parting.left) != _details(parting.right)
    kind, size = "fault", first
    ends = [compare(left, right) for left, right in zip(ours.values, theirs.values, strict=True)]
    end = max((size for size in ends if size is not None), default=None)
    if any(first is not None and UNDEFINED in first.detail for first in (parting.first_left, parting.first_right)):
        kind = UNDEFINED
    elif _is_exact(parting):
        size = None
    elif middle is not None and middle[1] <= MOST_ROUNDINGS and not _is_wrong(upper, end):
        kind, size = "rounding", middle
    elif end is not None and end[1] <= MOST_ROUNDINGS:
        kind, size = "rounding", end
    elif middle is not None and middle[0] <= MOST_NUMERICS and coarse:
        kind, size = "numerics", middle
    where, other = name_places(parting)
    relative, roundings = size or (None, None)
    return Difference(kind=kind, where=where, other=other, relative=relative, roundings=roundings, result=result)


def _is_wrong(upper: tuple[float, float] | None, end: tuple[float, float] | None) -> bool:
    """Whether a quarter of the operations and a result differ by more than rounding: small parts of a sum may agree."""
    return upper is not None and upper[1] > MOST_ROUNDINGS and end is not None and end[0] > MOST_NUMERICS


def name_places(parting: Parting) -> tuple[str, str | None]:
    """The earlier of the two first operations, and the other one if its text differs.

    The later one may be an echo: if a mask is applied twice, the second time changes nothing, and the side that does it
    parts only behind it.
    """
    firsts = [first for first in (parting.first_right, parting.first_left) if first is not None]
    texts = list(dict.fromkeys(str(first) for first in sorted(firsts, key=lambda first: first.place)))
    return (texts or ["the arguments"])[0], texts[1] if len(texts) > 1 else None


def _types(operations: Sequence[Operation]) -> set[str]:
    names = {operation.types[0].partition("[")[0] for operation in operations}
    return {name for name in names if name.startswith(_FLOATS)}


def _details(operations: Sequence[Operation]) -> set[str]:
    """Precisions and algorithms of the products."""
    return {
        part for operation in operations for part in operation.detail if "precision=" in part or "algorithm" in part
    }


def _is_exact(parting: Parting) -> bool:
    """Whether something parts that does not round: masks, indices and keys, or one operation with other constants."""
    left, right = parting.first_left, parting.first_right
    if any(first is not None and not first.types[0].startswith(_FLOATS) for first in (left, right)):
        return True
    if left is None or right is None or (left.name, left.operands) != (right.name, right.operands):
        return False
    return left.detail != right.detail


def compare(one: Any, other: Any) -> tuple[float, float] | None:
    """The largest difference over the scale of the values, and in units of the last place of the finer type.

    None if the values cannot be compared. If one is not a number and the other is, infinity.
    """
    if np.shape(one) != np.shape(other) or not np.size(one):
        return None
    finer = min(find_epsilon(array.dtype) for array in (one, other))
    left, right = widen(one), widen(other)
    if not overflow_alike(left, right):
        return np.inf, np.inf
    with np.errstate(invalid="ignore", over="ignore"):
        relative = float(np.nan_to_num(np.abs(left - right)).max()) / find_scale(left, left != right)
        return relative, relative / finer


def find_scale(values: np.ndarray[Any, Any], differs: np.ndarray[Any, Any]) -> float:
    """The largest of the values that differ, or a typical value where little is left of a sum.

    The -1e9 of a mask is equal on both sides, and among the distinct values one of many.
    """
    size = np.abs(np.where(np.isfinite(values), values, 0))
    typical = np.median(np.unique(size))
    return max(float(size[differs].max(initial=0)), float(typical), float(np.finfo(np.float64).tiny))


def overflow_alike(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays have the same infinities, and are undefined, at the same places."""
    odd_one, odd_other = (np.where(np.isfinite(array), 0, array) for array in (one, other))
    return np.array_equal(odd_one, odd_other, equal_nan=True)


def widen(array: Any) -> np.ndarray[Any, Any]:
    """The numbers in double precision; of complex ones both parts."""
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        array = np.stack([array.real, array.imag])
    return np.asarray(array, dtype=np.float64)


def find_epsilon(dtype: Any) -> float:
    """The distance from 1 to the next number; integers and truth values do not round: the smallest of all."""
    try:
        return float(jnp.finfo(dtype).eps)  # type: ignore[no-untyped-call]
    except ValueError:
        return float(np.finfo(np.float64).tiny)


def run_here(traced: Any) -> Run:
    return lambda keep: record(traced.jaxpr, traced.arguments, keep)


def explain(left: Run, right: Run, names: tuple[str, ...], progress: Callable[[str], None]) -> Difference | None:
    """The first operation in which two programs differ; None if all results are equal bit for bit."""
    progress("running the first side, operation by operation")
    ours = left(())
    progress("running the second side")
    theirs = right(())
    if ours.arguments != theirs.arguments:
        raise InputError("the two sides take different arguments.", "both get the arguments of --args")
    if len(ours.results) != len(theirs.results):
        raise InputError(f"one side returns {len(ours.results)} arrays, the other {len(theirs.results)}.")
    parting = find_parting(ours, theirs)
    if parting is None:
        return None
    progress("running both once more, to compare values")
    pairs = choose_pairs(parting)
    again = left([first for first, _ in pairs])
    if (own := find_parting(ours, again)) is not None:
        where, _ = name_places(own)
        is_read = own.first_left is not None and UNDEFINED in own.first_left.detail
        return Difference(
            kind=UNDEFINED if is_read else "not deterministic", where=where, result=_name_result(names, ours, again)
        )
    other = right([second for _, second in pairs])
    return classify(parting, pairs, again, other, _name_result(names, ours, theirs))


def _name_result(names: tuple[str, ...], one: Record, other: Record) -> str:
    pairs = zip(names, one.results, other.results, strict=True)
    return next(name for name, ours, theirs in pairs if ours != theirs)
