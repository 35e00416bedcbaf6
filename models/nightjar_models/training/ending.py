"""Was this run asked to end? Slurm, Kubernetes and `kill` send SIGTERM first, and SIGKILL half a minute later.

In: SIGTERM, to one process of the run or to all. Out: after each step, whether it was the last: the same answer in all
processes, so that they save the same step.
"""

from __future__ import annotations

import signal
import threading
from types import TracebackType
from typing import Any

import jax
from jax.experimental import multihost_utils


class Ending:
    """Takes SIGTERM while it is entered.

    Several processes agree by JAX's own service, which takes the signal of each from its start on. One process alone
    that has nothing to save is ended by the signal at once, as any program.

    Args:
        saves: whether there is a checkpoint to write before the end.
    """

    def __init__(self, saves: bool) -> None:
        self._several = jax.process_count() > 1
        self._takes = saves and not self._several and threading.current_thread() is threading.main_thread()
        self._before: Any = None
        self._asked = False

    def __enter__(self) -> Ending:
        if self._takes:
            self._before = signal.signal(signal.SIGTERM, self._ask)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._takes:
            signal.signal(signal.SIGTERM, self._before)

    def is_asked(self, step: int) -> bool:
        """Whether the run ends after so many steps; to be asked after each."""
        if self._several:
            return bool(multihost_utils.reached_preemption_sync_point(step))
        return self._asked

    def _ask(self, number: int, frame: Any) -> None:
        self._asked = True
