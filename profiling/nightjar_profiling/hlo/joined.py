"""Stacks as the program made its calls, from stacks that JAX and XLA put together.

JAX records the stack of an operation inside of a traced function from that function on, and XLA puts the stack of the
call before it when it inlines. The result is false in three ways, which are mended here for all operations of a module:

- A primitive that JAX lowers by tracing it (the loop of a scan, the rule of a custom_vjp) repeats the calls up to its
  own: `f > scan > f > scan > f > scan > body`. Of equal blocks in a row the first is kept, if the last call of it is
  to JAX: an operation ends there. A function that calls itself has blocks, too, but they end in a call to it.
- JAX traces the slices that a scan makes of its arrays once in a process: they carry the calls of an earlier scan. They
  belong to the call of their own loop.
- The forward pass of a checkpointed function lacks the calls between the transformation and the function. If a place
  seems to call a function directly that the backward pass, and no other operation, calls below another one, and from
  one place only, then the calls between are missing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple


class Site(NamedTuple):
    """A call in the source; the columns of its first and last character are 0 if not recorded."""

    file: str
    line: int
    function: str
    column: int = 0
    end_column: int = 0


Stack = tuple[Site, ...]
"""Outermost first."""
Path = tuple[int, ...]
"""A stack of numbered sites."""

_IN_LOOP = re.compile(r"(.*\bwhile)/body/")
_SLICE = re.compile(r"(.*\bwhile)/body/jit\(dynamic_(?:update_)?index_in_dim\)/[^/]*$")


def join_stacks(operations: Iterable[tuple[str, Stack]]) -> dict[tuple[str, Stack], Stack]:
    """The stack of each operation, by its name and the stack that is recorded, with every call once."""
    numbers: dict[Site, int] = {}
    paths = {
        (name, stack): tuple(numbers.setdefault(site, len(numbers)) for site in stack) for name, stack in operations
    }
    sites = list(numbers)
    ends = {path[-1] for path in paths.values() if path}
    loops = defaultdict[str, set[Path]](set)
    for (name, _), path in paths.items():
        if name.endswith("while"):
            loops[name].add(path)
    joined = {}
    for key, path in paths.items():
        loop = _IN_LOOP.match(key[0])
        is_lost = loop is not None and loop[1] not in loops  # of a single round: only its body is left
        joined[key] = _drop_repeated(path, set(path) if is_lost else ends)
    calls = {
        name: {call for path in found if (call := _drop_repeated(path, ends)) != path} for name, found in loops.items()
    }
    for key, path in joined.items():
        sliced = _SLICE.match(key[0])
        if sliced:
            of_loop = calls.get(sliced[1], ())
            joined[key] = next((call for call in of_loop if path[: len(call)] == call), path)
    backward = {key for key in joined if "checkpoint" in key[0]}
    whole = {joined[key] for key in backward} - {path for key, path in joined.items() if key not in backward}
    missing = _find_missing(set(joined.values()), whole, sites)
    forward = {key: _add_missing(path, missing, sites) for key, path in joined.items() if key not in backward}
    return {key: tuple(sites[number] for number in path) for key, path in (joined | forward).items()}


def _drop_repeated(path: Path, ends: Set[int]) -> Path:
    if len(set(path)) == len(path):
        return path
    kept: list[int] = []
    for site in path:
        kept.append(site)
        if site in ends:
            lengths = range(1, len(kept) // 2 + 1)
            repeated = (n for n in lengths if kept[-n - 1] == site and kept[-n:] == kept[-2 * n : -n])
            del kept[len(kept) - next(repeated, 0) :]
    return tuple(kept)


def _find_missing(paths: Set[Path], whole: Set[Path], sites: Sequence[Site]) -> dict[tuple[Path, str], Path]:
    """The calls that only `whole` paths have, by the path of the place that calls and the function it seems to call."""
    called = defaultdict[Path, set[str]](set)
    for path in paths:
        for number in range(1, len(path)):
            if sites[path[number - 1]].end_column:
                called[path[:number]].add(sites[path[number]].function)
    odd = {above: functions for above, functions in called.items() if len(functions) > 1}
    between = defaultdict[tuple[Path, str], dict[tuple[Site, ...], Path]](dict)
    if not odd:
        return {}
    for path in whole:
        functions = [sites[number].function for number in path]
        for first in (number for number in range(1, len(path)) if path[:number] in odd):
            for last in range(first + 1, len(path)):
                if functions[last] in odd[path[:first]] and functions[last] != functions[first]:
                    lines = tuple(Site(*sites[number][:3]) for number in path[first:last])
                    between[path[:first], functions[last]][lines] = path[first:last]
    return {key: next(iter(calls.values())) for key, calls in between.items() if len(calls) == 1}


def _add_missing(path: Path, missing: Mapping[tuple[Path, str], Path], sites: Sequence[Site]) -> Path:
    if not missing:
        return path
    for number in range(1, len(path)):
        calls = missing.get((path[:number], sites[path[number]].function))
        if calls is not None:
            return path[:number] + calls + path[number:]
    return path
