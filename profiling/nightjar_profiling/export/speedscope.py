"""A speedscope file with one sampled profile per device, weights in nanoseconds.

In: tables. Out: JSON. All profiles share their frames; the innermost frame of a stack is the HLO instruction.

Source: https://www.speedscope.app/file-format-schema.json
"""

from __future__ import annotations

import json
from typing import Any

from nightjar_profiling.attribution.apportion import Fusion
from nightjar_profiling.capture_folder.tables import Tables
from nightjar_profiling.export.samples import find_samples


def render_speedscope(tables: Tables, fusion: Fusion = "split", mark: str = "") -> bytes:
    """The bytes of the file."""
    frames: dict[tuple[str, int, str], int] = {}
    devices: dict[tuple[int, int], tuple[list[list[int]], list[int]]] = {}
    for sample in find_samples(tables, fusion, mark):
        stack = [frames.setdefault(site, len(frames)) for site in (*sample.path, ("", 0, sample.instruction))]
        stacks, weights = devices.setdefault((sample.rank, sample.device), ([], []))
        stacks.append(stack)
        weights.append(sample.duration_ns)
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "nightjar-profiling",
        "name": "device time by Python stack",
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(*site) for site in frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": f"rank {rank}, device {device}",
                "unit": "nanoseconds",
                "startValue": 0,
                "endValue": sum(weights),
                "samples": stacks,
                "weights": weights,
            }
            for (rank, device), (stacks, weights) in devices.items()
        ],
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _frame(file: str, line: int, function: str) -> dict[str, Any]:
    if file:
        return {"name": function, "file": file, "line": line}
    return {"name": function}
