"""The choice of the profiler that records a program, and the command line for it.

In: the user's choice and the machine's tools. Out: a profiler, with the reason for the choice; and for Nsight Systems,
the command that runs a program under it. With steps, nsys waits for `cuProfilerStart`, which the hook in the program
calls. Only `has_gpu` reads the machine; the rest is pure.

Source: https://docs.nvidia.com/nsight-systems/UserGuide (CLI options of `nsys profile`)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from nightjar_profiling.errors import CaptureError


class Backend(StrEnum):
    """Which profiler records the program."""

    AUTO = "auto"
    JAX = "jax"
    NSYS = "nsys"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A profiler, and why it was chosen.

    Attributes:
        reason: in words that complete `tracing with ...`.
    """

    backend: Backend
    program: str | None
    reason: str


def has_gpu(root: Path = Path("/")) -> bool:
    """Whether this machine has an NVIDIA GPU with a loaded driver."""
    return any(root.glob("dev/nvidia[0-9]*")) or (root / "dev" / "dxg").exists()


def choose_backend(wanted: Backend, nsys: str | None, gpu: bool) -> Choice:
    """The profiler to use."""
    if wanted is Backend.NSYS or (wanted is Backend.AUTO and nsys is not None and gpu):
        if nsys is None:
            raise CaptureError(
                "--backend nsys: there is no `nsys` here.", "install Nsight Systems, or use --backend jax"
            )
        why = "found, with a GPU"
        if wanted is Backend.NSYS:
            why = "as asked"
        return Choice(backend=Backend.NSYS, program=nsys, reason=f"Nsight Systems ({why})")
    if wanted is Backend.JAX:
        return Choice(backend=Backend.JAX, program=None, reason="JAX's profiler (as asked)")
    lacking = "no GPU"
    if nsys is None:
        lacking = "no nsys" if gpu else "neither nsys nor a GPU"
    return Choice(backend=Backend.JAX, program=None, reason=f"JAX's profiler ({lacking} found)")


def render_nsys(nsys: str, report: Path, steps: tuple[int, int] | None, command: Sequence[str]) -> list[str]:
    """The command that runs a program under nsys."""
    options = [
        f"--output={report}",
        "--force-overwrite=true",
        "--trace=cuda,nvtx",
        "--cuda-graph-trace=node",  # a graph as a whole has no instructions
        "--sample=none",
        "--cpuctxsw=none",
        "--stats=false",
        "--wait=all",
    ]
    if steps is not None:
        options += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]  # stop-shutdown ends the program
    return [nsys, "profile", *options, *command]
