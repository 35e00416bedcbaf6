"""Cost table of the instructions of a step, for people and notebooks; no gate reads it.

In: a `Module` and the `Estimate` of its step. Out: a JSON document of columns, one row for
each instruction that runs, in the order of the schedule; its sums by kind are the `kernels` of the facts.
"""

from __future__ import annotations

import json
import lzma
from typing import Any

from nightjar_models.aot.estimate import Estimate
from nightjar_models.program.lines import Lines
from nightjar_models.program.module import Module

COLUMNS = ("name", "kind", "file", "line", "function", "inferred", "runs", "flops", "bytes", "seconds", "bound")
_DIGITS = 10  # of seconds after the point
_FAST = 1  # preset of lzma: 100,000 instructions are 20 MB of text, in 1 s; the default preset takes many times as long


def render_instructions(module: Module, estimate: Estimate, program: str, target: str) -> dict[str, Any]:
    """The document. `flops`, `bytes` and `seconds` are totals of one step on each device."""
    lines, rows = Lines(module), []
    for instruction, runs in module.executed():
        timed = estimate.timed.get(instruction.id)
        if timed is None:  # the `-done` of a `-start`
            continue
        line, inferred = lines.find(instruction)
        location = ("", 0, "") if line is None else (line.file, line.line, line.function)
        seconds = round(runs * timed.seconds, _DIGITS)
        work = (runs, runs * timed.cost.flops, runs * timed.cost.bytes, seconds, timed.bound)
        rows.append((instruction.name, timed.kind, *location, inferred, *work))
    columns = zip(*rows, strict=True) if rows else ((),) * len(COLUMNS)
    table = dict(zip(COLUMNS, map(list, columns), strict=True))
    return {"program": program, "target": target, "instructions": table}


def pack_instructions(document: dict[str, Any]) -> bytes:
    return lzma.compress(json.dumps(document, separators=(",", ":")).encode(), preset=_FAST)
