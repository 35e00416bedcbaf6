"""How does a training loop capture some of its own steps, without the command `nightjar-profiling capture`?

In: a folder and the first and last step. Out: a context manager around the loop. It listens to the loop's steps
(`nightjar_profiling.annotate` or `jax.profiler.StepTraceAnnotation`), traces those asked for, and when the loop is over
makes the capture folder. In a job of several processes each has a folder of its own below the one asked for.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nightjar_profiling.capture import launch, session
from nightjar_profiling.capture.hook import tracer as hook
from nightjar_profiling.capture.ranks import find_rank, rank_folder
from nightjar_profiling.errors import InputError, ProfilingError
from nightjar_profiling.manifest import finish_folder, prepare_folder, write_manifest

DEFAULT_LIMIT = 10  # of jax_traceback_in_locations_limit: library frames alone can be more


@contextmanager
def capture_steps(out: str | Path, steps: tuple[int, int], *, user_code: tuple[str, ...] = ()) -> Iterator[Path]:
    """Traces steps of the loop inside, and leaves a capture folder with a report when it is over.

    What cannot be captured is a warning: the loop and its results are worth more than its profile. Under the command
    `nightjar-profiling capture` it does nothing, since that traces already.

    Args:
        out: the capture folder to make.
        steps: first and last step to trace, both included.
        user_code: patterns of modules that count as your own code though they are installed.

    Yields:
        The capture folder, with the rank's name below it in a job of several processes.

    Raises:
        InputError: JAX is not imported, the steps are no range, or the folder holds something else.
    """
    first, last = steps
    if last < first:
        raise InputError(f"capture_steps: steps {steps}: the last step is before the first.")
    profiler = getattr(sys.modules.get("jax"), "profiler", None)
    if profiler is None:
        raise InputError("capture_steps: JAX is not imported.", "`import jax` first")
    folder = rank_folder(Path(out).absolute(), find_rank_of_jax())
    if "_nightjar_tracer" in sys.modules:
        warnings.warn("capture_steps: nightjar-profiling capture traces this program already.", stacklevel=3)
        yield folder
        return
    prepare_folder(folder)
    tracer = hook.Tracer(profiler, folder / "raw", (first, last))
    tracer.listen_to_compiler()
    with full_stacks(), listening(tracer):
        try:
            yield folder
        finally:
            tracer.at_exit()
            tracer.disarm()
    try:
        finish(folder, (first, last), user_code)
    except ProfilingError as error:
        warnings.warn(f"capture_steps: no capture was made: {error}", stacklevel=3)


def finish(folder: Path, steps: tuple[int, int], user_code: tuple[str, ...]) -> None:
    """Makes the capture folder from what the tracer left.

    Raises:
        ProfilingError: nothing was traced, or nothing can be made of it.
    """
    from nightjar_profiling.ingest import ingest  # heavy: not before the loop is over

    notes = launch.read_notes(folder / "raw")
    traces = session.settle_raw(folder / "raw", notes)
    rank = find_rank_of_jax()
    manifest = session.describe_capture(sys.argv, os.environ, steps, user_code, 0, notes, rank=rank)
    write_manifest(folder, manifest)
    if not traces:
        raise session.explain_nothing(sys.argv, steps, 0, notes)
    ingest(folder, manifest, copy_sources=True)
    finish_folder(folder)
    print(f"nightjar-profiling: {folder / 'report.html'}", file=sys.stderr, flush=True)


def find_rank_of_jax() -> int | None:
    """The rank by the launcher's variables, else by JAX where its distributed system is up."""
    rank = find_rank(os.environ)
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    several = (getattr(state, "num_processes", None) or 1) > 1
    return int(state.process_id) if rank is None and several and state is not None else rank


@contextmanager
def listening(tracer: hook.Tracer) -> Iterator[None]:
    """Puts the tracer's ears on the program's step annotations, and takes them off again."""
    profiler: Any = tracer.profiler
    original = profiler.StepTraceAnnotation
    profiler.StepTraceAnnotation = hook.listening_annotation(original, tracer)
    try:
        yield
    finally:
        profiler.StepTraceAnnotation = original


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
