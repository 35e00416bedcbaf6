"""Orderly end of a run on SIGTERM, which Slurm, Kubernetes and `kill` send half a minute before SIGKILL.

In: SIGTERM, to one process of the run or to all. Out: after each step, whether it was the last. All processes get the
same answer, so that they save the same step.
"""

from __future__ import annotations

import signal
import threading
from types import TracebackType
from typing import Any

import jax
from jax.experimental import multihost_utils


class Ending:
    """Handles SIGTERM inside its `with` block.

    Several processes agree through JAX's own service, which handles the signal from the start of JAX. A single process
    without checkpoints is ended by the signal at once, like any program.

    Args:
        saves: whether the run writes checkpoints.
    """

    def __init__(self, saves: bool) -> None:
        self._several = jax.process_count() > 1
        self._takes = saves and not self._several and threading.current_thread() is threading.main_thread()
        self._before: Any = None
        self._received = False

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
        """Whether the run ends after this step; call it after each one."""
        if self._several:
            return bool(multihost_utils.reached_preemption_sync_point(step))
        return self._received

    def _ask(self, number: int, frame: Any) -> None:
        self._received = True
