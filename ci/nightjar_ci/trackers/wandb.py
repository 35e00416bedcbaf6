"""Runs for Weights & Biases, written with its own library, which `WANDB_MODE=offline` keeps on this machine.

In: runs and the name of a project. Out: a run of W&B for each, without what the library records by itself: it would be
of the program that writes, not of the job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.trackers.tracked_run import TrackedRun

if TYPE_CHECKING:
    from wandb import Run


def write_wandb(runs: Sequence[TrackedRun], project: str, folder: Path) -> Iterator[str]:
    """Writes runs; one that the server has is left as it is, an offline folder is written each time.

    Args:
        runs: what to write.
        project: the project's name.
        folder: where the library keeps its files.

    Yields:
        a line for each run that says what was done.

    Raises:
        InputError: the library is not installed.
        NightjarError: the server refused a run or was not reached, or nobody is logged in.
    """
    try:
        import wandb
    except ImportError as error:
        raise InputError(f"--wandb: {error}.", "pip install 'nightjar-ci[wandb]'") from None
    folder.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        silent=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    for run in runs:
        name = hashlib.sha256(run.key.encode()).hexdigest()[:16]
        try:
            with wandb.init(
                project=project,
                dir=folder,
                id=name,
                name=run.job,
                group=run.night,
                config=dict(run.config) | {"nightjar": dict(run.tags)},
                resume="never",
                settings=settings,
            ) as written:
                _log(written, run)
                if not run.completed:
                    written.finish(exit_code=1)
        except wandb.Error as error:
            if "already exists" in str(error):
                yield f"wandb: {run.job}: written before"
                continue
            raise NightjarError(
                f"wandb: {run.job}: {str(error).splitlines()[0]}",
                "log in with `wandb login`, or set WANDB_MODE=offline",
            ) from None
        yield f"wandb: {run.job}: written as {name}"


def _log(written: Run, run: TrackedRun) -> None:
    for name, points in run.curves.items():
        written.define_metric(_clean(name), step_metric="step")
        for step, value in points:
            written.log({_clean(name): value, "step": step})
    for name, values in run.samples.items():
        written.define_metric(_clean(name), step_metric="sample")
        for number, value in enumerate(values):
            written.log({_clean(name): value, "sample": number})
    written.summary.update({_clean(name): value for name, value in run.scalars.items()})


def _clean(name: str) -> str:
    """A name that W&B does not take for a path in a nested value.

    >>> _clean("train_step.flops")
    'train_step/flops'
    """
    return name.replace(".", "/")
