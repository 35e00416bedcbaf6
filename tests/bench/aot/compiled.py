"""How does a bench compile? In an environment of its own, timed in seconds of CPU: each program in a process.

In: an environment's Python, the arguments of `nightjar-models compile`, and what else differs. Out: a `RunRecord`. Two
processes at a time: CPU is counted for each alone, so that the other does not matter.
"""

import os
import subprocess
import sys
import tempfile
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
    cpu_s: float
    said: str


def find_python() -> Path:
    """The Python of the locked environment with the CUDA plugin."""
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
    before: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    to: str | None = None,
) -> Compiled:
    """Compiles in a process of its own.

    Args:
        python: of the environment.
        arguments: what follows `nightjar-models compile`, without `--out`.
        out: where the result goes; a result that is there is not made again.
        fault: name of a fault of `faults.py` to plant.
        before: a command that starts the process, such as `taskset -c 0`.
        variables: of its environment.
        to: the folder `out` under another name, as the process knows it.
    """
    if not (out / "result.json").is_file():
        module = ["-m", "nightjar_models"] if fault is None else ["-m", "tests.bench.aot.plant", fault]
        argv = [*before, str(python), *module, "compile", *arguments, "--out", to or str(out)]
        environ = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{ROOT}:{ROOT / 'models'}", **(variables or {})}
        print(f"compiling: {' '.join(arguments)}{f' with {fault}' if fault else ''}", file=sys.stderr, flush=True)
        code, cpu_s, said = run_timed(argv, environ)
        if code:
            return Compiled(record=None, cpu_s=cpu_s, said=said[-2000:])
        (out / "cpu_s").write_text(str(cpu_s))
    return Compiled(record=read_run(out / "result.json"), cpu_s=float((out / "cpu_s").read_text()), said="")


def run_timed(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[int, float, str]:
    """Runs a command: its exit status, the seconds of CPU of it and its children, and what it wrote to stderr."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=said, env=environ)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        return process.returncode, usage.ru_utime + usage.ru_stime, said.read().decode(errors="replace")


def run_two_at_a_time(calls: Sequence[Callable[[], Compiled]]) -> list[Compiled]:
    with ThreadPoolExecutor(2) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]
