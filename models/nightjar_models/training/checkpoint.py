"""Checkpoints of a run: state, data position and history, saved and restored with Orbax.

In: a folder. Out: after a restart, the next step computes bit for bit what it would have computed. A checkpoint of
another run (other config, seed or data) and one of another format are errors; the mesh may differ, and the number
of steps grow. The newest two are kept: if one is damaged or was copied in part, the run continues from the one before.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import orbax.checkpoint as ocp

from nightjar_models.errors import InputError, OutputError
from nightjar_models.presets.config import DEFAULTS, Scalar

KEPT = 2
FORMAT = 2  # of a checkpoint; raised whenever an older Nightjar would read it wrongly


@dataclasses.dataclass(slots=True)
class History:
    """Measurements of the steps so far: one value of each list per step."""

    losses: list[float] = dataclasses.field(default_factory=list)
    step_times: list[float] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint's content; `position` is the data iterator's state."""

    state: Any
    position: dict[str, Any]
    history: History


class DamagedError(InputError):
    """A checkpoint cannot be read."""


class Checkpoints:
    """The newest checkpoints of a run; written in the background while the next steps run.

    Args:
        folder: made at the first save.
        every: steps between two checkpoints; 0 writes none.
        identity: values that must be equal for a run to continue, but for `steps`, the step that it stops at.
        say: takes a sentence about a checkpoint that could not be read.
    """

    def __init__(self, folder: Path, every: int, identity: Mapping[str, Scalar], say: Callable[[str], None]) -> None:
        self._folder, self._every, self._say = folder, every, say
        self._identity = dict(identity)
        self._last = int(self._identity.pop("steps"))
        self._manager: ocp.CheckpointManager | None = None

    def __enter__(self) -> Checkpoints:
        if self._every or self._folder.is_dir():
            options = ocp.CheckpointManagerOptions(max_to_keep=KEPT)
            self._manager = self._guard(lambda: ocp.CheckpointManager(self._folder.resolve(), options=options))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._manager is None:
            return
        if error is None:
            self._guard(self._manager.close)
        else:
            with contextlib.suppress(Exception):  # finish the write in progress; the original error matters more
                self._manager.close()

    def restore(self, abstract: Any) -> Restored | None:
        """The newest checkpoint that can be read, laid out as `abstract` says; None if there is none.

        Raises:
            InputError: it belongs to another run or has another format, or all are damaged.
        """
        steps = [] if self._manager is None else sorted(self._manager.all_steps(), reverse=True)
        for tried, step in enumerate(steps, 1):
            try:
                return self._restore(step, abstract)
            except DamagedError as error:
                if tried == len(steps):
                    raise
                self._say(f"{error.message} Continuing from step {steps[tried]}")
        return None

    def _restore(self, step: int, abstract: Any) -> Restored:
        about = self._read(step, about=ocp.args.JsonRestore())
        if (version := about.get("format", 1)) != FORMAT:
            raise InputError(
                f"{self._folder / str(step)}: holds a checkpoint of format {version}, expected {FORMAT}.",
                "continue it with the Nightjar that wrote it, or choose another --out",
            )
        # A choice that stays at its default is not saved.
        held, own = (DEFAULTS | {"nudged": False} | one for one in (about["identity"], self._identity))
        for name in held | own:
            if held.get(name) != own.get(name):
                raise InputError(
                    f"{self._folder}: holds a checkpoint with {name} {held.get(name)!r}, expected {own.get(name)!r}.",
                    "choose another --out, or remove the folder",
                )
        if step > self._last:
            raise InputError(
                f"{self._folder}: holds a checkpoint of step {step}, expected at most {self._last}.",
                "choose another --out, or raise steps",
            )
        state = self._read(step, state=ocp.args.StandardRestore(abstract))
        return Restored(state, about["position"], History(**about["history"]))

    def is_due(self, step: int, last: bool) -> bool:
        """Whether to save after this step: every `every` steps and after the last one."""
        return self._manager is not None and bool(self._every) and (step % self._every == 0 or last)

    def save(self, step: int, state: Any, position: Mapping[str, Any], history: History) -> None:
        """Saves the state after `step` steps; older checkpoints are removed once this one is complete.

        Raises:
            OutputError: the folder cannot be written.
        """
        assert self._manager is not None, "is_due is false without a manager"
        about = {
            "format": FORMAT,
            "identity": self._identity,
            "position": position,
            "history": dataclasses.asdict(history),
        }
        args = ocp.args.Composite(state=ocp.args.StandardSave(state), about=ocp.args.JsonSave(about))
        manager = self._manager
        if step in manager.all_steps():  # damaged, so that the run continued from an older one
            self._guard(lambda: manager.delete(step))
        self._guard(lambda: manager.save(step, args=args))

    def _read(self, step: int, **item: Any) -> Any:
        assert self._manager is not None, "restore returned early without a manager"
        try:
            return self._manager.restore(step, args=ocp.args.Composite(**item))[next(iter(item))]
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise DamagedError(
                f"{self._folder / str(step)}: the checkpoint cannot be read: {reason}.",
                "it is damaged: remove the folder to train from the start, or choose another --out",
            ) from error

    def _guard(self, action: Any) -> Any:
        try:
            return action()
        except (OSError, ValueError, RuntimeError) as error:
            raise OutputError(f"{self._folder}: the checkpoint cannot be written: {error}.") from error
