"""The host's own time by Python line, of the thread that runs the steps.

In: the tracer's samples (`capture/hook/host_time.py`): the time of each Python stack. Out: the time of each line of
user code that the thread was in, and the function that most of it went to: one of JAX if it waited for the device or
dispatched, one of another library, or the line's own function. The lines, and the time outside them, sum to the time on
the clock.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nightjar_profiling.capture_folder.usercode import module_path

Place = tuple[str, int]
"""File and line."""
MOST_LINES = 200
MOST_NS = 2**63
WAITS = ("block_until_ready", "_value")  # of jax.Array: the host waits for the device
THE_LINE = "the line itself"  # and its callees in C


def read_host_time(raw: Path) -> dict[str, Any] | None:
    """The samples of the first rank of a capture; None if there are none, or not in the tracer's format."""
    try:
        document = json.loads((raw / "rank0000.host").read_text(encoding="utf-8"))
        _check(document)
    except (OSError, LookupError, TypeError, ValueError, RecursionError):  # not sampled, or killed while writing
        return None
    return dict(document)


def _check(document: Any) -> None:
    """Raises: LookupError, TypeError, ValueError: it is not in the tracer's format."""
    numbers = [document["elapsed_ns"], document["samples"]]
    for ns, stack in document["stacks"]:
        numbers.append(ns)
        for file, line, function in stack:
            numbers.append(line)
            if not isinstance(file, str) or not isinstance(function, str):
                raise TypeError("not the name of a file and of a function")
    if not all(type(number) is int and 0 <= number < MOST_NS for number in numbers):
        raise ValueError("not a time, a count or a line")


def tabulate_host_time(
    document: Mapping[str, Any],
    is_user_code: Callable[[str], bool],
    source_of: Callable[[str, int], str | None],
    device_ns: Mapping[Place, int],
) -> dict[str, Any]:
    """The time by line, the longest first.

    Args:
        document: as the tracer wrote it.

    Returns:
        `elapsed_ns` of the clock, number of `samples`, `uncertain` (two standard errors of a share of one half, with
        that number of samples), and `lines`, each with `file`, `line`, `function`, `source`, `host_ns`, `fraction` (of
        the elapsed time), `inside` (the innermost function, in which most of it was spent), `inside_ns` of that, and
        `device_ns`.
    """
    lines: Counter[Place] = Counter()
    functions: dict[Place, str] = {}
    insides: dict[Place, Counter[str]] = defaultdict(Counter)
    for ns, stack in document["stacks"]:  # the innermost frame first
        frame = next((frame for frame in stack if is_user_code(frame[0])), None)
        if frame is None:
            continue
        file, line, function = frame
        lines[file, line] += ns
        functions[file, line] = function
        inner_file, _, inner_function = stack[0]
        name = THE_LINE
        if stack[0] != frame:
            name = inner_function
        if not is_user_code(inner_file):
            name = f"{module_path(inner_file)}.{inner_function}"
        insides[file, line][name] += ns
    elapsed_ns = document["elapsed_ns"]
    rows = []
    for (file, line), ns in lines.most_common(MOST_LINES):
        inside, inside_ns = insides[file, line].most_common(1)[0]
        rows.append(
            {
                "file": file,
                "line": line,
                "function": functions[file, line],
                "source": source_of(file, line),
                "host_ns": ns,
                "fraction": ns / max(elapsed_ns, 1),
                "inside": inside,
                "inside_ns": inside_ns,
                "device_ns": device_ns.get((file, line), 0),
            }
        )
    samples = document["samples"]
    return {"elapsed_ns": elapsed_ns, "samples": samples, "uncertain": 1 / math.sqrt(max(samples, 1)), "lines": rows}


def find_busiest(table: Mapping[str, Any]) -> dict[str, Any] | None:
    """The row of `tabulate_host_time` with the most time not spent waiting for a device; None if there is none."""
    return next((row for row in table["lines"] if row["inside"].rpartition(".")[2] not in WAITS), None)
