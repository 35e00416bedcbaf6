"""The end of a traced program: its traces, its notes and its manifest.

In: the exit code of the program and the notes of its processes. Out: the capture, or the error that says why there is
nothing to attribute.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nightjar_profiling.capture.launch import Notes, find_lost_stacks, read_notes
from nightjar_profiling.capture_folder.manifest import Manifest, write_manifest
from nightjar_profiling.errors import CaptureError, NotAttributableError, ProfilingError
from nightjar_profiling.terminal import say

if TYPE_CHECKING:
    from nightjar_profiling.report.analyse import Profile

MANY_FAULTS, LARGE_SHARE = 1_000, 0.1  # page faults of a step; of its CPU time
OF_MALLOC = ("MALLOC_", "GLIBC_TUNABLES")
KEEPING = "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8000000000 MALLOC_TOP_PAD_=67108864"
BESIDE = {"jsonl": "compile.jsonl", "sources": "sources", "lowered": "lowered", "host": "host"}
CLOCK_STEP_NS = 20_000_000  # file systems stamp files by a clock that ticks every 4 to 10 ms


NOTED_VARIABLES = (
    *("XLA_", "JAX_", "NCCL_", "CUDA_", "LIBTPU_INIT_ARGS", "NVIDIA_VISIBLE_DEVICES"),
    *("NVIDIA_TF32_OVERRIDE", "TF_GPU_ALLOCATOR", "OMP_NUM_THREADS", "MALLOC_", "GLIBC_TUNABLES"),
)
"""Beginnings of their names."""
SECRETS = re.compile("TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY")


def settle_raw(raw: Path, notes: Sequence[Notes]) -> list[Path]:
    """Gives the traces and the dumped programs their rank's name, in order of process index; takes the notes away.

    Returns:
        The traces, by rank; under nsys its one report of all processes.
    """
    traces: list[Path] = []
    dumps: list[Path] = []
    for process in notes:
        trace, dump = raw / f"{process.pid}.xplane.pb", raw / f"{process.pid}.dump"
        if trace.is_file():
            for ours, suffix in BESIDE.items():
                if (raw / f"{process.pid}.{ours}").exists():
                    (raw / f"{process.pid}.{ours}").rename(raw / f"rank{len(traces):04}.{suffix}")
            traces.append(trace.rename(raw / f"rank{len(traces):04}.xplane.pb"))
        if process.dumped_to is not None and process.dumped_to.is_dir():
            copy_dump(process.dumped_to, process.dumped_since_ns, dump)
        if dump.is_dir():
            dumps.append(dump.rename(raw / f"rank{len(dumps):04}.dump"))
        for suffix in ("json", "jsonl", "sources", "host"):
            (raw / f"{process.pid}.{suffix}").unlink(missing_ok=True)
        shutil.rmtree(raw / f"{process.pid}.lowered", ignore_errors=True)
    return [*traces, *sorted(raw.glob("*.nsys-rep"))]


def make_capture(
    folder: Path,
    command: Sequence[str],
    steps: tuple[int, int] | None,
    user_code: Sequence[str],
    exit_code: int = 0,
    *,
    failure: str = "",
    backend: Literal["jax", "nsys"] = "jax",
    rank: int | None = None,
) -> Profile:
    """Makes the capture from the files that a program or a loop has left.

    Args:
        failure: a sentence on a loop that ended early, in place of that on the program's exit code.
    """
    notes = read_notes(folder / "raw")
    traces = settle_raw(folder / "raw", notes)
    manifest = describe_capture(command, os.environ, steps, user_code, exit_code, notes, backend, rank)
    if failure:
        manifest = replace(manifest, exit_code=1, warnings=(failure, *manifest.warnings))
    write_manifest(folder, manifest)
    if not traces:
        raise explain_nothing(command, steps, exit_code, notes)
    say("attributing the trace to Python lines")
    from nightjar_profiling.pipeline.ingest import ingest  # heavy: not before the program has run

    return ingest(folder, manifest, copy_sources=True, origin="the trace of this run")


def copy_dump(theirs: Path, since_ns: int, ours: Path) -> None:
    """Copies the programs that were dumped since a moment into the user's own folder; it stays as it is."""
    for path in sorted(theirs.glob("*_optimizations.hlo.pb*")):
        if path.stat().st_mtime_ns >= since_ns - CLOCK_STEP_NS:
            ours.mkdir(exist_ok=True)
            shutil.copyfile(path, ours / path.name)


def describe_capture(
    command: Sequence[str],
    environ: Mapping[str, str],
    steps: tuple[int, int] | None,
    user_code: Sequence[str],
    exit_code: int,
    notes: Sequence[Notes],
    backend: Literal["jax", "nsys"],
    rank: int | None,
) -> Manifest:
    """The manifest of a capture, as far as the run records it."""
    machine = {"machine": describe_machine(), "flags": find_flags(environ)}
    rank_entry = {} if rank is None else {"rank": rank}
    traced = next((process for process in notes if process.state == "done"), None)
    warnings = [f"process {process.pid}: {process.error}." for process in notes if process.error is not None]
    if exit_code != 0:
        warnings.insert(0, f"The program failed ({name_end(exit_code)}): this profile may be incomplete.")
    if steps is not None and traced is not None and traced.traced is not None and traced.traced != steps:
        warnings.append(
            f"Steps {steps[0]} to {steps[1]} were asked for, {traced.traced[0]} to {traced.traced[1]} traced."
        )
    if traced is not None and backend == "jax":
        warnings += find_page_faults(traced.environment, environ)
    return Manifest(
        backend=backend,
        command=tuple(command),
        exit_code=exit_code,
        steps=(traced.traced if traced is not None and traced.traced is not None else steps) if steps else None,
        environment={**(traced.environment if traced is not None else {}), **rank_entry, **machine},
        user_code=tuple(user_code),
        warnings=(*find_lost_stacks(environ), *warnings),
    )


def find_page_faults(traced: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    """A warning if a CPU's steps seem to pay repeatedly for memory that they had given back to the system."""
    usage = traced.get("usage")
    if usage is None or set(traced.get("devices", ())) != {"cpu"} or any(n.startswith(OF_MALLOC) for n in environ):
        return []
    if not usage["steps"] or usage["compiles"]:  # a compiler needs much new memory
        return []
    faults = usage["page_faults"] / usage["steps"]
    share = usage["system_s"] / max(usage["user_s"] + usage["system_s"], 1e-9)
    if faults < MANY_FAULTS or share < LARGE_SHARE:
        return []
    return [
        f"The system took {share:.0%} of the CPU time of the traced steps, with {faults:,.0f} page faults in each: "
        f"perhaps freed memory goes back to it. {KEEPING} keep it (glibc; 'Memory' in the documentation's performance "
        "guide)."
    ]


def explain_nothing(
    command: Sequence[str], steps: tuple[int, int] | None, exit_code: int, notes: Sequence[Notes]
) -> ProfilingError:
    """Why a program that has ended left no trace."""
    what = f"capture: {command[0]!r}"
    if exit_code < 0:
        return CaptureError(
            f"{what} was ended by {name_end(exit_code)} before it left a trace.",
            "out of memory, or a timeout? Choose early steps with --steps FIRST:LAST, so that the trace is on disk",
        )
    if exit_code > 0:
        return CaptureError(f"{what} ended with {name_end(exit_code)} before anything was traced.")
    errors = [process.error for process in notes if process.error is not None]
    if errors:
        return CaptureError(f"{what} ran, but was not traced: {errors[0]}.")
    if not notes:
        return NotAttributableError(
            f"{what} never imported jax.profiler: there is nothing to attribute.",
            "is the program a Python that reads PYTHONPATH (not started with -I, -E or -S)?",
        )
    if steps is not None:
        seen = [process.seen for process in notes if process.seen is not None]
        if not seen:
            return NotAttributableError(
                f"{what} has no jax.profiler.StepTraceAnnotation: steps {steps[0]} to {steps[1]} never occurred.",
                "leave --steps out to trace the whole run",
            )
        first, last = min(span[0] for span in seen), max(span[1] for span in seen)
        return NotAttributableError(
            f"{what} ran steps {first} to {last}: steps {steps[0]} to {steps[1]} never occurred.",
            f"choose from {first}:{last}",
        )
    return NotAttributableError(f"{what} never used a device of JAX.")


def shell_code(exit_code: int) -> int:
    """A program's exit code, as a shell reports it: its own, or 128 and the number of the signal.

    >>> shell_code(7), shell_code(-9)
    (7, 137)
    """
    if exit_code >= 0:
        return exit_code
    return 128 - exit_code


def name_end(exit_code: int) -> str:
    """`exit code 1`, or the name of the signal.

    >>> name_end(-9)
    'SIGKILL'
    >>> name_end(-40)
    'signal 40'
    """
    if exit_code >= 0:
        return f"exit code {exit_code}"
    has_name = -exit_code in set(signal.Signals)  # most real-time signals have no name
    if has_name:
        return signal.Signals(-exit_code).name
    return f"signal {-exit_code}"


def find_flags(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter, by name.

    >>> find_flags({"CUDA_VISIBLE_DEVICES": "0", "JAX_SERVICE_TOKEN": "x", "HOME": "/root"})
    {'CUDA_VISIBLE_DEVICES': '0'}
    """
    return {
        name: value
        for name, value in sorted(environ.items())
        if name.startswith(NOTED_VARIABLES) and not SECRETS.search(name)
    }


def describe_machine(root: Path = Path("/")) -> dict[str, str]:
    """Host name, processor and NVIDIA driver, as far as the machine reports them."""
    facts = {
        "host": platform.node(),
        "cpu": _search(root / "proc" / "cpuinfo", r"^(?:model name|Model)\s*:\s*(.+)$"),
        "driver": _search(root / "proc" / "driver" / "nvidia" / "version", r"Kernel Module.*?\s(\d+\.\d[\d.]*)"),
    }
    return {name: value for name, value in facts.items() if value}


def _search(path: Path, pattern: str) -> str:
    """The first part of a text file that a pattern names; empty if there is none."""
    try:
        match = re.search(pattern, path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    except OSError:
        return ""
    if match:
        return match[1].strip()
    return ""
