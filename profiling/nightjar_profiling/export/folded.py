"""Folded stacks: a line for each stack of a capture, as flamegraph.pl, inferno and speedscope read them.

In: tables. Out: `outermost;...;instruction nanoseconds`, summed over devices; their times sum to the ops' total, exact
to the nanosecond. A mark, for example that the times are estimates, becomes the outermost frame of every stack.

Source: https://github.com/brendangregg/FlameGraph (stackcollapse*.pl)
"""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath

import polars as pl

from nightjar_profiling.attribution.apportion import INSTRUCTION, apportion_time
from nightjar_profiling.attribution.stacks import Site, build_stacks
from nightjar_profiling.capture_folder.tables import Tables

NO_STACK_SITE: Site = ("", 0, "no Python stack")
FORBIDDEN = str.maketrans({";": ",", "\n": " ", "\r": " "})


def render_folded(tables: Tables, mark: str = "") -> bytes:
    """The stacks, largest instruction first; an op without an instruction has its kernel's name."""
    tree, outermost = build_stacks(tables), (("", 0, mark),) if mark else ()
    shares = apportion_time(tables, by=("kernel",)).sort(
        "duration_ns", *INSTRUCTION, "frame_id", descending=[True] + 3 * [False]
    )
    times = Counter[str]()
    for row in shares.filter(pl.col("duration_ns") > 0).iter_rows(named=True):
        path = tree.path(tree.node_of(row["program_id"], row["frame_id"]))
        sites = (*outermost, *([tree.places[site] for site in path] or [NO_STACK_SITE]))
        instruction = row["instruction"] or row["kernel"] or "unknown op"
        times[";".join([*map(site_label, sites), instruction.translate(FORBIDDEN)])] += row["duration_ns"]
    return "".join(f"{stack} {ns}\n" for stack, ns in times.items()).encode("utf-8", "replace")


def site_label(site: Site) -> str:
    """`function (file.py:3)`.

    >>> site_label(("/home/me/a;b.py", 3, "loss"))
    'loss (a,b.py:3)'
    """
    file, line, function = site
    label = function
    if file:
        label = f"{function} ({PurePath(file).name}:{line})"
    return label.translate(FORBIDDEN)
