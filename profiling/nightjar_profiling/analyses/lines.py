"""The user line of each stack frame.

In: frames, and a test for user code. Out: for each frame id its *user line*: the innermost frame of user code on the
way outward, or the frame itself if there is none. Linear in the number of frames.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

SCHEMA = {
    "program_id": pl.Int64,
    "frame_id": pl.Int64,
    "file": pl.String,
    "line": pl.Int64,
    "function": pl.String,
    "user": pl.Boolean,
}


def find_user_lines(frames: pl.DataFrame, is_user_code: Callable[[str], bool]) -> pl.DataFrame:
    """One row for each frame.

    Returns:
        Columns: `program_id`, `frame_id`; `file`, `line` and `function` of its user line; and `user` (false if the
        stack has no frame of user code).
    """
    rows = {
        (row[0], row[1]): row
        for row in frames.select("program_id", "frame_id", "file", "line", "function", "parent_id").iter_rows()
    }
    is_user = {file: is_user_code(file) for file in frames["file"].unique().to_list()}
    user_frames: dict[tuple[int, int], tuple[int, int] | None] = {}
    for key in rows:
        path, frame = [], key
        while frame in rows and frame not in user_frames and frame not in path and not is_user[rows[frame][2]]:
            path.append(frame)
            frame = (frame[0], rows[frame][5])
        if frame in rows and is_user[rows[frame][2]]:
            user_frames[frame] = frame
        user_frames.update(dict.fromkeys(path, user_frames.get(frame)))
    lines = []
    for key, row in rows.items():
        user = user_frames.get(key)
        lines.append((*key, *row[2:5], False) if user is None else (*key, *rows[user][2:5], True))
    return pl.DataFrame(lines, schema=SCHEMA, orient="row")
