"""The Python stack frames of a module: read from its table, and found by their stacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from nightjar_profiling.errors import InputError
from nightjar_profiling.hlo.joined import Site, Stack
from nightjar_profiling.protos import hlo_pb2

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One Python stack frame; `parent_id` is its caller."""

    frame_id: int
    parent_id: int | None
    site: Site


@dataclass(slots=True)
class FrameIndex:
    """Stacks of a program by their frames; a stack that the program lacks gets frames of its own."""

    frames: dict[int, Frame]
    added: list[Frame] = field(default_factory=list)
    _stacks: dict[int, Stack] = field(default_factory=dict)
    _ids: dict[tuple[int | None, Site], int] = field(default_factory=dict)
    _next: int = 1

    def __post_init__(self) -> None:
        self._next = max(self.frames, default=0) + 1
        for frame in self.frames.values():
            self._ids.setdefault((frame.parent_id, frame.site), frame.frame_id)

    def stack_of(self, frame_id: int) -> Stack:
        """The stack of a frame, outermost first; empty if there is no such frame."""
        if frame_id not in self._stacks:
            path = []
            number: int | None = frame_id
            while number is not None and number in self.frames:
                path.append(self.frames[number].site)
                number = self.frames[number].parent_id
            self._stacks[frame_id] = tuple(reversed(path))
        return self._stacks[frame_id]

    def frame_of(self, stack: Stack) -> int | None:
        """The innermost frame of a stack; None if the stack is empty."""
        number: int | None = None
        for site in stack:
            inner = self._ids.setdefault((number, site), self._next)
            if inner == self._next:
                self.added.append(Frame(frame_id=inner, parent_id=number, site=site))
                self._next += 1
            number = inner
        return number


def read_frames(index: hlo_pb2.StackFrameIndex, where: str) -> dict[int, Frame]:
    """The stack frames of a module, by id."""
    frames = {}
    try:
        for number, frame in enumerate(index.stack_frames, start=1):
            location = _at(index.file_locations, frame.file_location_id)
            frames[number] = Frame(
                frame_id=number,
                parent_id=frame.parent_frame_id or None,
                site=Site(
                    _at(index.file_names, location.file_name_id),
                    location.line,
                    _at(index.function_names, location.function_name_id),
                    location.column,
                    location.end_column,
                ),
            )
    except IndexError:
        raise InputError(f"{where}: a stack frame refers to a file, function or line that does not exist.") from None
    return _cut_cycles(frames)


def _cut_cycles(frames: dict[int, Frame]) -> dict[int, Frame]:
    """Ends each stack at a cycle or at a missing parent."""
    sound: set[int] = set()
    for number in frames:
        stack: dict[int, None] = {}
        position: int | None = number
        while position is not None and position not in sound:
            stack[position] = None
            parent = frames[position].parent_id
            if parent is not None and (parent not in frames or parent in stack):
                frames[position] = replace(frames[position], parent_id=None)
                break
            position = parent
        sound.update(stack)
    return frames


def _at(values: Sequence[Value], number: int) -> Value:
    """The element at an index that counts from 1."""
    if number < 1:
        raise IndexError(number)
    return values[number - 1]
