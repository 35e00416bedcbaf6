"""Difference of the facts of two compiled programs, fact by fact, as numbers and text.

In: the facts of a program before and after, and a policy. Out: the names of the facts that differ by more than it
allows (`fusions.kLoop.count`), and a line for each.
"""

from __future__ import annotations

import math
from fnmatch import fnmatchcase

from nightjar_ci.formats.policy import FactsPolicy
from nightjar_ci.formats.run_record import Ahead, Facts
from nightjar_ci.judges.finding import percent

_WORDS = {"opcodes": "", "fusions": "fusion ", "custom_calls": "custom call ", "collectives": "collective "}
_WORK = {"kernels": "kernel ", "messages": "message "}  # for programs compiled ahead of time
_SPILLS = "ahead.spill_bytes"
COMPUTATION = "ahead.computation"


def flatten(facts: Facts | None) -> dict[str, float | None]:
    """Facts by name (`fusions.kLoop.count`, `flops`); empty if there is no such program."""
    if facts is None:
        return {}
    flat: dict[str, float | None] = {"flops": facts.flops}
    flat |= {f"memory.{name}": value for name, value in facts.memory.model_dump().items()}
    for group in _WORDS:
        for kind, tally in sorted(getattr(facts, group).items()):
            flat |= {f"{group}.{kind}.count": tally.count, f"{group}.{kind}.bytes": tally.bytes}
    if facts.ahead is not None:
        flat |= _flatten_ahead(facts.ahead)
    return flat


def _flatten_ahead(ahead: Ahead) -> dict[str, float | None]:
    flat: dict[str, float | None] = {
        "ahead.reserved_bytes": ahead.reserved_bytes,
        "ahead.code_bytes": ahead.code_bytes,
        "ahead.spill_bytes": ahead.spill_bytes,
        "ahead.lints": len(ahead.lints),
    }
    flat |= {f"estimate.{name}": value for name, value in sorted(ahead.estimate.items())}
    for group in ("kernels", "messages"):
        for kind, work in sorted(getattr(ahead, group).items()):
            flat |= {f"{group}.{kind}.{name}": value for name, value in work.model_dump().items()}
    return flat


def changed(before: Facts | None, after: Facts | None, policy: FactsPolicy) -> dict[str, float]:
    """The facts that differ by more than the policy allows, with their relative change (infinite from nothing).

    If no number differs, `COMPUTATION` is a change if one compiler made different computations.
    """
    old, new = flatten(before), flatten(after)
    changes = {}
    for name in sorted({**old, **new}, key=_group_order):
        default = None if name == "flops" or name.startswith(("memory.", "ahead.", "estimate.")) else 0.0
        was, now = old.get(name, default), new.get(name, default)
        if was == now or (name == _SPILLS and None in (was, now)):  # unknown if a machine has no ptxas
            continue
        relative = math.inf
        if was and now is not None:
            relative = (now - was) / was
        if not abs(relative) <= _tolerance(name, policy):  # NaN counts as a change
            changes[name] = relative
    if not changes and _computes_otherwise(before, after) and math.isfinite(_tolerance(COMPUTATION, policy)):
        changes[COMPUTATION] = math.inf
    return changes


def _tolerance(name: str, policy: FactsPolicy) -> float:
    return next((limit for glob, limit in policy.tolerance.items() if fnmatchcase(name, glob)), 0.0)


def _computes_otherwise(before: Facts | None, after: Facts | None) -> bool:
    """Whether one compiler made two different computations; results of different compilers are not comparable."""
    if before is None or after is None or before.ahead is None or after.ahead is None:
        return False
    was, now = (facts.ahead.computation or "" for facts in (before, after) if facts.ahead is not None)
    return was != now and bool(was) and was.partition(":")[0] == now.partition(":")[0]


def describe_changes(before: Facts | None, after: Facts | None, policy: FactsPolicy) -> dict[str, str]:
    """A line of text for each change, by fact name, counts first."""
    old, new = flatten(before), flatten(after)
    changes = changed(before, after, policy)
    lines = {}
    for name, relative in changes.items():
        group, _, detail = name.partition(".")
        was, now = old.get(name), new.get(name)
        if name == COMPUTATION:
            lines[name] = "the computation: other operands, constants or attributes of instructions"
        elif group in _WORK:
            kind, _, measure = detail.rpartition(".")
            lines[name] = f"{_WORK[group]}{kind} {measure} {_amount(was, now, relative)}"
        elif detail.endswith(".count"):
            kind = f"{_WORDS[group]}{detail.removesuffix('.count')}"
            lines[name] = f"{kind} {was or 0:g} -> {now or 0:g} ({(now or 0) - (was or 0):+g})"
        elif detail.endswith(".bytes"):
            kind = f"{_WORDS[group]}{detail.removesuffix('.bytes')}"
            counted = f"{group}.{detail.removesuffix('.bytes')}.count" in changes  # the count line is enough
            if group == "collectives" or not counted:
                lines[name] = f"{kind} output bytes {_amount(was or 0, now or 0, relative)}"
        else:
            lines[name] = f"{(detail or group).replace('_', ' ')} {_amount(was, now, relative)}"
    return lines


def diff_lines(before: Facts | None, after: Facts | None, policy: FactsPolicy) -> list[str]:
    return list(describe_changes(before, after, policy).values())


def _group_order(name: str) -> int:
    """The order of groups in a difference: the compiler's choices first, plain instructions last."""
    groups = (
        *("kernels", "messages", "collectives", "fusions", "custom_calls", "flops", "ahead", "estimate", "memory"),
        "opcodes",
    )
    return groups.index(name.partition(".")[0])


def _amount(was: float | None, now: float | None, relative: float) -> str:
    text = f"{_format(was)} -> {_format(now)}"
    if math.isfinite(relative):
        text += f" ({percent(relative)})"
    return text


def _format(value: float | None) -> str:
    if value is None:
        return "none"
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:.4g}"
