"""Which Python line does each stack count for?

In: frames, and what is the user's own code. Out: for each frame id its *user line*: the innermost frame of the user's
own code on the way outward, or where there is none the innermost frame. Linear in the number of frames.
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
        Columns: `program_id`, `frame_id`, and of its user line `file`, `line`, `function` and `user` (false where no
        frame of the stack is the user's own).
    """
    rows = {
        (row[0], row[1]): row
        for row in frames.select("program_id", "frame_id", "file", "line", "function", "parent_id").iter_rows()
    }
    own = {file: is_user_code(file) for file in frames["file"].unique().to_list()}
    found: dict[tuple[int, int], tuple[int, int] | None] = {}
    for key in rows:
        path, place = [], key
        while place in rows and place not in found and place not in path and not own[rows[place][2]]:
            path.append(place)
            place = (place[0], rows[place][5])
        mine = place in rows and own[rows[place][2]]
        answer = place if mine else found.get(place)
        found.update(dict.fromkeys(path, answer))
        if mine:
            found[place] = place
    lines = []
    for key, row in rows.items():
        user = found.get(key)
        lines.append((*key, *rows[user][2:5], True) if user is not None else (*key, *row[2:5], False))
    return pl.DataFrame(lines, schema=SCHEMA, orient="row")
