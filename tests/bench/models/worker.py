"""One process of a race: reads from stdin whose steps to run and how many, answers with their time.

In: a preset, the batches, and the names of contestants, all or none of which end with `+kept`. Out: a line of JSON with
the losses of each one's first steps, then one with wall and CPU seconds for every line read.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from nightjar_models.training.freed_memory import keep_freed_memory

FIRST_STEPS = 10  # while the learning rate rises
KEPT = "+kept"  # of contestants whose process keeps the memory that it frees


def main(preset: str, path: str, *names: str) -> None:
    """Runs until stdin ends."""
    with np.load(path) as file:
        stored = dict(file)
    batches: list[dict[str, Any]] = [{} for _ in range(1 + max(int(key.partition(".")[0]) for key in stored))]
    for key, array in stored.items():
        number, _, field = key.partition(".")
        batches[int(number)][field] = array
    if len({name.endswith(KEPT) for name in names}) > 1:
        raise SystemExit(f"{', '.join(names)}: expected all or none with {KEPT}, as they share a process.")
    if names[0].endswith(KEPT) and not keep_freed_memory():
        raise SystemExit(f"{names[0]}: malloc cannot keep freed memory here; unset MALLOC_* and GLIBC_TUNABLES.")
    steps = {name: make(name, preset) for name in names}
    first = [batches[number % len(batches)] for number in range(FIRST_STEPS)]
    print(json.dumps({name: [step(batch) for batch in first] for name, step in steps.items()}), flush=True)
    done = dict.fromkeys(names, FIRST_STEPS)
    for line in sys.stdin:
        name, count = line.split()
        step, numbers = steps[name], range(done[name], done[name] + int(count))
        wall, cpu = time.perf_counter(), time.process_time()
        for number in numbers:
            step(batches[number % len(batches)])
        answer = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        done[name] = numbers.stop
        print(json.dumps(answer), flush=True)


def make(name: str, preset: str) -> Callable[[Any], float]:
    """The step of a contestant."""
    module, _, variant = name.removesuffix(KEPT).partition(":")
    found: Callable[[Any], float] = importlib.import_module(f"tests.bench.models.contestant_{module}").make(
        preset, *([variant] if variant else [])
    )
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
