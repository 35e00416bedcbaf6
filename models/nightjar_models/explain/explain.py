"""Compares two programs by their values: in: two runs of the same arguments. Out: a `Difference`, or None."""

from __future__ import annotations

from collections.abc import Callable, Collection

from nightjar_models.errors import InputError
from nightjar_models.explain.judge import Difference, choose_pairs, classify, find_parting, name_places
from nightjar_models.explain.program import Traced
from nightjar_models.explain.record import UNDEFINED, Record, record

Run = Callable[[Collection[int]], Record]  # runs a program; the first results of these operations are kept


def run_here(traced: Traced) -> Run:
    """Runs a program in this process."""
    return lambda keep: record(traced.jaxpr, traced.arguments, keep)


def explain(left: Run, right: Run, names: tuple[str, ...], progress: Callable[[str], None]) -> Difference | None:
    """The first operation in which two programs differ; None if all results are equal bit for bit.

    Args:
        names: of the results.
        progress: takes the name of each phase.
    """
    progress("running the first side, operation by operation")
    ours = left(())
    progress("running the second side")
    theirs = right(())
    if ours.arguments != theirs.arguments:
        raise InputError("the two sides take different arguments.", "both get those of --args")
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
    """The first result that differs."""
    pairs = zip(names, one.results, other.results, strict=True)
    return next(name for name, ours, theirs in pairs if ours != theirs)
