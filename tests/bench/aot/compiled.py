"""How does a bench compile? In an environment of its own, each program in a process, two at a time.

In: an environment's Python, the arguments of `nightjar-models compile`, and what else differs. Out: a `RunRecord`.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nightjar_ci.environments.prepare import prepare
from nightjar_ci.formats.run_record import RunRecord, read_run
from tests.places import ROOT

LOCK = "docker/locks/aot.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A compiled program; `record` is None where the compiler refused it, and `said` is what it wrote."""

    record: RunRecord | None
    said: str


def find_python() -> Path:
    os.chdir(ROOT)  # the lock's path is relative
    prepared = prepare(f"uv:{LOCK}", on_line=lambda line: print(line, file=sys.stderr, flush=True))
    assert prepared.bin_dir is not None  # as of every uv environment
    return prepared.bin_dir / "python"


def compile_one(
    python: Path,
    arguments: Sequence[str],
    out: Path,
    *,
    fault: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> Compiled:
    if not (out / "result.json").is_file():
        module = ["-m", "nightjar_models"] if fault is None else ["-m", "tests.bench.aot.plant", fault]
        argv = [str(python), *module, "compile", *arguments, "--out", str(out)]
        environ = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{ROOT}:{ROOT / 'models'}", **(variables or {})}
        print(f"compiling: {' '.join(arguments)}{f' with {fault}' if fault else ''}", file=sys.stderr, flush=True)
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", env=environ, check=False)
        if done.returncode:
            return Compiled(record=None, said=done.stderr[-2000:])
    return Compiled(record=read_run(out / "result.json"), said="")


def run_two_at_a_time(calls: Sequence[Callable[[], Compiled]]) -> list[Compiled]:
    with ThreadPoolExecutor(2) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]
