"""The Python lines from which the difference between two compiled programs came.

In: the instructions of each line, before and after. Out: one sentence per line whose instructions differ, the most
changed first. A line that only moved, or whose file was renamed, is matched by its function and its instructions; the
other lines of a function are compared in order, so that an edited line is named once.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from nightjar_ci.formats.run_record import LineWork, Tally

MOST_LINES = 5
MOST_OPCODES = 4
_LINE = re.compile(r"(?P<file>[^:]*):(?P<number>\d+)(?: (?P<function>.*))?")
_UNTOLD = frozenset(("fusion", "copy", "bitcast", "broadcast", "call"))  # follow from the others
Lines = Mapping[str, LineWork]
_NONE = LineWork(opcodes={}, digest="")
OTHER = "the same instructions with other operands, constants or attributes"


def explain_lines(old: Lines, new: Lines) -> list[str]:
    """The sentences; empty if a program's lines are unknown or no line differs."""
    if not old or not new:
        return []
    differences = [(line, _compare(was, now)) for line, was, now in _pair(old, new)]
    differences = [(line, changes) for line, changes in differences if changes]
    differences.sort(key=lambda entry: -max(abs(change) for _, _, change in entry[1]))
    sentences = [f"{line}: {_describe(changes)}" for line, changes in differences[:MOST_LINES]]
    if len(differences) > MOST_LINES:
        sentences.append(f"and {len(differences) - MOST_LINES} other lines")
    return sentences


def _pair(old: Lines, new: Lines) -> Iterator[tuple[str, LineWork, LineWork]]:
    """Lines that may differ: their name, and their instructions before and after."""
    before, after = _by_function(old), _by_function(new)
    for function in sorted({*before, *after}):
        was, now = dict(before.get(function, {})), dict(after.get(function, {}))
        for line in sorted(now, key=_order):  # the same line first, then one that moved
            same = next((name for name in sorted(was, key=lambda name: name != line) if was[name] == now[line]), None)
            if same is not None:
                del was[same], now[line]
        shared = [line for line in now if line in was]
        yield from ((line, was.pop(line), now.pop(line)) for line in shared)
        for lost, gained in zip_longest(sorted(was, key=_order), sorted(now, key=_order)):
            yield gained or lost, was.get(lost, _NONE), now.get(gained, _NONE)


def _by_function(lines: Lines) -> dict[str, dict[str, LineWork]]:
    functions: dict[str, dict[str, LineWork]] = defaultdict(dict)
    for line, work in lines.items():
        functions[_split(line)[2]][line] = work
    return functions


def _order(line: str) -> tuple[str, int]:
    return _split(line)[:2]


def _split(line: str) -> tuple[str, int, str]:
    """File, number and function, such as `("train.py", 12, "loss")`."""
    match = _LINE.fullmatch(line)
    if match is None:
        return line, 0, line
    return match["file"], int(match["number"]), match["function"] or match["file"]


def _compare(was: LineWork, now: LineWork) -> list[tuple[str, str, float]]:
    """Opcode, change in words and its weight, of each difference, the most changed first."""
    none = Tally(count=0, bytes=0)
    if was.opcodes == now.opcodes:
        return [("", OTHER, 1.0)]
    changes = []
    for opcode in sorted({*was.opcodes, *now.opcodes}):
        before, after = was.opcodes.get(opcode, none), now.opcodes.get(opcode, none)
        if before == after:
            continue
        text = f"{opcode} {before.count} -> {after.count}"
        if before.count == after.count:
            text = f"{opcode} results {_mib(before.bytes)} -> {_mib(after.bytes)}"
        weight = 1.0 + abs(after.bytes - before.bytes)
        if opcode in _UNTOLD:
            weight /= 16
        changes.append((opcode, text, weight))
    return sorted(changes, key=lambda change: (change[0] in _UNTOLD, -change[2]))


def _describe(changes: Sequence[tuple[str, str, float]]) -> str:
    text = ", ".join(change for _, change, _ in changes[:MOST_OPCODES])
    if len(changes) > MOST_OPCODES:
        text += f" and {len(changes) - MOST_OPCODES} more"
    return text


def _mib(size: int) -> str:
    if size >= 2**20:
        return f"{size / 2**20:.2f} MiB"
    return f"{size:,} bytes"
