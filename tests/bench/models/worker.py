"""One contestant of a race: reads from stdin how many steps to run, answers with their time.

In: the contestant's name, which may end with `+kept`, a preset, and the batches. Out: a line of JSON with the loss of
the first step, then one with wall and CPU seconds for every line read.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any

import numpy as np

from nightjar_models.freed_memory import keep_freed_memory

KEPT = "+kept"  # of a contestant whose process keeps the memory that it frees


def main(name: str, preset: str, path: str) -> None:
    """Runs until stdin ends."""
    with np.load(path) as file:
        stored = dict(file)
    batches: list[dict[str, Any]] = [{} for _ in range(1 + max(int(key.partition(".")[0]) for key in stored))]
    for key, array in stored.items():
        number, _, field = key.partition(".")
        batches[int(number)][field] = array
    if name.endswith(KEPT) and not keep_freed_memory():
        raise SystemExit(f"{name}: malloc cannot be told to keep freed memory here; unset MALLOC_* and GLIBC_TUNABLES.")
    module, _, variant = name.removesuffix(KEPT).partition(":")
    make = importlib.import_module(f"tests.bench.models.contestant_{module}").make
    step = make(preset, *([variant] if variant else []))
    print(json.dumps({"loss": step(batches[0])}), flush=True)
    done = 1
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            step(batches[done % len(batches)])
            done += 1
        answer = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
