"""Capture of some steps of a training loop from inside it, without `nightjar-profiling capture`.

In: a folder and the first and last step. Out: a context manager around the loop. It listens to the loop's steps
(`nightjar_profiling.annotate` or `jax.profiler.StepTraceAnnotation`), traces those asked for, and makes the capture
folder when the loop is over. In a job of several processes, each process has its own folder below the one asked for.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from nightjar_profiling.capture import session
from nightjar_profiling.capture.hook import tracer as hook
from nightjar_profiling.capture.hook.own_traces import share_with_own_traces
from nightjar_profiling.capture_folder.ranks import find_rank, rank_folder
from nightjar_profiling.errors import InputError, ProfilingError, explain
from nightjar_profiling.pipeline.staging import find_place, making
from nightjar_profiling.terminal import say

NSYS_SESSION = "NSYS_PROFILING_SESSION_ID"  # nsys sets it in the programs that it records
_OPEN: list[Path] = []  # the capture that is being made in this process
DEFAULT_LIMIT = 10  # of jax_traceback_in_locations_limit: library frames alone can be more


@contextmanager
def capture_steps(
    out: str | Path, steps: tuple[int, int] | None = None, *, user_code: tuple[str, ...] = ()
) -> Iterator[Path]:
    """Traces steps of the loop inside, or all that runs there, and leaves a capture folder with a report at its end.

    A failed capture is a warning: the loop and its results are worth more than its profile. Under the command
    `nightjar-profiling capture` it does nothing, since that traces already.

    Args:
        out: the capture folder to make.
        steps: first and last step to trace, both included; None for all that runs inside.
        user_code: patterns of modules that count as your own code though they are installed.

    Yields:
        The capture folder, with the rank's name below it in a job of several processes.

    Raises:
        InputError: JAX is not imported, the steps are not a range, the folder holds something else, or this is inside
            another `capture_steps`.
    """
    if steps is not None and steps[1] < steps[0]:
        raise InputError(f"capture_steps: steps {steps}: the last step is before the first.")
    profiler = getattr(sys.modules.get("jax"), "profiler", None)
    if profiler is None:
        raise InputError("capture_steps: JAX is not imported.", "`import jax` first")
    folder = rank_folder(Path(out).absolute(), find_rank_of_jax())
    if "_nightjar_hook.tracer" in sys.modules:
        warnings.warn("capture_steps: nightjar-profiling capture traces this program already.", stacklevel=3)
        yield folder
        return
    if NSYS_SESSION in os.environ:  # CUPTI serves one profiler at a time
        hint = "start it with nightjar-profiling capture --backend nsys"
        warnings.warn(f"capture_steps: nsys records this program. Hint: {hint}", stacklevel=3)
        yield folder
        return
    if _OPEN:
        raise InputError(
            f"capture_steps: already capturing into {_OPEN[0]}: a process can run one trace at a time.",
            "leave the first `with capture_steps(...)` before the next begins",
        )
    staging = making(folder)
    new = staging.__enter__()  # left below: its errors are a warning, the loop's are not
    _OPEN.append(folder)
    ended = None
    try:
        with tracing(profiler, new / "raw", steps):
            yield folder
    except BaseException as error:
        ended = type(error).__name__
        raise
    finally:
        _OPEN.clear()
        try:
            with ExitStack() as stack:
                stack.push(staging)
                failure = f"The loop ended with {ended}: this profile may be incomplete." if ended else ""
                session.make_capture(new, sys.argv, steps, user_code, failure=failure, rank=find_rank_of_jax())
                report = find_place(folder, new) / "report.html"
            say(str(report))
        except (ProfilingError, OSError) as error:
            warnings.warn(f"capture_steps: no capture was made: {explain(error)}", stacklevel=3)


@contextmanager
def tracing(profiler: ModuleType, raw: Path, steps: tuple[int, int] | None) -> Iterator[None]:
    """Traces the steps that run inside, or all that does, into a folder."""
    tracer = hook.Tracer(profiler, raw, steps)
    tracer.listen_to_compiler()
    with full_stacks(), listening(tracer), ExitStack() as stack:
        stack.callback(tracer.keep_lowered())
        try:
            if steps is None:
                sys.modules["jax"].devices()  # a trace that starts before the backends misses their ops
                tracer.start()
            yield
        finally:
            tracer.at_exit()
            tracer.disarm()


def find_rank_of_jax() -> int | None:
    """The rank by the launcher's variables, else by JAX if its distributed system is up."""
    rank = find_rank(os.environ)
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    several = (getattr(state, "num_processes", None) or 1) > 1
    if rank is None and several and state is not None:
        return int(state.process_id)
    return rank


@contextmanager
def listening(tracer: hook.Tracer) -> Iterator[None]:
    """Puts the tracer's ears on the program's step annotations and own traces, and takes them off again."""
    profiler: Any = tracer.profiler
    original = profiler.StepTraceAnnotation
    profiler.StepTraceAnnotation = hook.listening_annotation(original, tracer)
    replaced = share_with_own_traces(tracer)
    try:
        yield
    finally:
        profiler.StepTraceAnnotation = original
        for module, name, function in replaced:
            setattr(module, name, function)


@contextmanager
def full_stacks() -> Iterator[None]:
    """Programs compiled inside keep their whole Python stacks, unless the user has set how much of them."""
    config = getattr(sys.modules["jax"], "config", None)
    name = "jax_traceback_in_locations_limit"
    if getattr(config, name, None) != DEFAULT_LIMIT or name.upper() in os.environ or config is None:
        yield
        return
    config.update(name, -1)
    try:
        yield
    finally:
        config.update(name, DEFAULT_LIMIT)
