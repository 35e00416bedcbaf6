"""Folded stacks as flamegraph.pl and inferno read them.

In: tables. Out: text, one line per stack: `outermost;...;innermost;instruction nanoseconds`. A semicolon in a name
becomes a comma, a line break a space.

Source: https://github.com/brendangregg/FlameGraph (stackcollapse*.pl)
"""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath

from nightjar_profiling.attribution.stacks import Site
from nightjar_profiling.capture_folder.tables import Tables
from nightjar_profiling.export.samples import find_samples

FORBIDDEN = str.maketrans({";": ",", "\n": " ", "\r": " "})


def render_folded(tables: Tables, mark: str = "") -> bytes:
    """The bytes of the file, summed over devices."""
    times = Counter[str]()
    for sample in find_samples(tables, mark):
        times[";".join([*map(site_label, sample.path), sample.instruction.translate(FORBIDDEN)])] += sample.duration_ns
    return "".join(f"{stack} {ns}\n" for stack, ns in times.items() if ns).encode("utf-8", "replace")


def site_label(site: Site) -> str:
    """`function (file.py:3)`.

    >>> site_label(("/home/me/a;b.py", 3, "loss"))
    'loss (a,b.py:3)'
    """
    file, line, function = site
    if file:
        label = f"{function} ({PurePath(file).name}:{line})"
    else:
        label = function
    return label.translate(FORBIDDEN)
