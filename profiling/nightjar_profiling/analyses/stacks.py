"""Stacks of frames, and the line of the user's code in each.

In: frames, and the test for user code. Out: the stack of a frame; its *user line* is the innermost frame of user code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass

import polars as pl

from nightjar_profiling.capture_folder.tables import Tables

FrameKey = tuple[int, int]
"""Program id and frame id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFrame:
    """A frame of a stack; `user` is true for user code."""

    file: str
    line: int
    function: str
    user: bool


Stack = tuple[StackFrame, ...]
"""Outermost frame first."""


def read_stacks(tables: Tables, is_user_code: Callable[[str], bool]) -> Callable[[FrameKey], Stack]:
    """A function from a frame to its stack."""
    frames = {
        (row["program_id"], row["frame_id"]): (
            row["parent_id"],
            StackFrame(file=row["file"], line=row["line"], function=row["function"], user=is_user_code(row["file"])),
        )
        for row in tables.frames.iter_rows(named=True)
    }

    def outward(key: FrameKey) -> Iterator[StackFrame]:
        seen = set()  # a damaged file may contain a cycle
        while key in frames and key not in seen:
            seen.add(key)
            parent_id, frame = frames[key]
            yield frame
            key = (key[0], parent_id)

    return lambda key: tuple(outward(key))[::-1]


def user_line(stack: Stack) -> StackFrame:
    """The innermost frame of user code; the innermost frame if there is none."""
    return next((frame for frame in reversed(stack) if frame.user), stack[-1])


def find_user_lines(tables: Tables, is_user_code: Callable[[str], bool]) -> pl.DataFrame:
    """The user line of each frame.

    Returns:
        Columns: `program_id`, `frame_id`; `file`, `line`, `function` and `user` of its user line.
    """
    stack_of = read_stacks(tables, is_user_code)
    frames = tables.frames.select("program_id", "frame_id", "file", "line", "function")
    lines = [(*row[:2], *astuple(user_line(stack_of(row[:2])))) for row in frames.iter_rows()]
    return pl.DataFrame(lines, schema={**frames.schema, "user": pl.Boolean}, orient="row")
