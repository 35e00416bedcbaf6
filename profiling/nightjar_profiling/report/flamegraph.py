"""The flame graph of a profile: device time as a tree of Python calls, and its Plotly icicle chart.

In: device time by frame, and the stacks. Out: a tree of plain nodes, and its figure as JSON. A stack is shown from its
first user frame on: the user frames, then the library frames inside the innermost of them. Library frames between user
frames (wrappers of jit, grad and similar) are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any
from zlib import crc32

from nightjar_profiling.analyses.stacks import FrameKey, Stack, StackFrame
from nightjar_profiling.report.analyse import DeviceTime

SMALLEST_FRACTION = 0.0005  # under half a pixel on a page of 1,000 pixels
USER_COLOURS = ("#e8833a", "#d9a441", "#c8663f", "#e0b060", "#b5553c", "#edc07a")
LIBRARY_COLOUR = "#7f93ab"
OTHER_COLOUR = "#9a9a9a"
MONOSPACE = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


@dataclass(slots=True)
class Node:
    """A call path; `total_ns` includes its children."""

    label: str
    location: str
    colour: str
    total_ns: int = 0
    children: dict[tuple[str, int, str], Node] = field(default_factory=dict)


def visible(stack: Stack) -> Stack:
    """The frames of a stack that the chart shows; the whole stack if it has no user code."""
    users = [number for number, frame in enumerate(stack) if frame.user]
    if not users:
        return stack
    return (*(stack[number] for number in users), *stack[users[-1] + 1 :])


def build_tree(time: DeviceTime, stack_of: Callable[[FrameKey], Stack], mark: str = "") -> Node:
    """The tree of all attributed time, with one node for unattributed time; its root has the total device time."""
    label = f"device time ({mark})" if mark else "device time"
    root = Node(label, "all ops without containers", OTHER_COLOUR, time.total_ns)
    attributed_ns = 0
    for key, ns in time.by_frame.items():
        if stack := visible(stack_of(key)):
            attributed_ns += ns
            _add(root, stack, ns)
    if unattributed_ns := time.total_ns - attributed_ns:
        root.children["", 0, ""] = Node("no Python stack", "not attributed", OTHER_COLOUR, unattributed_ns)
    return root


def render_figure(root: Node) -> dict[str, Any]:
    """The icicle chart as a Plotly figure in JSON form, with a transparent background."""
    rows = list(_rows(root, "", "0", root.total_ns * SMALLEST_FRACTION))
    nodes = [node for _, _, node in rows]
    icicle = {
        "type": "icicle",
        "ids": [name for name, _, _ in rows],
        "parents": [parent for _, parent, _ in rows],
        "labels": [node.label for node in nodes],
        "values": [node.total_ns for node in nodes],
        "branchvalues": "total",
        "customdata": [[node.location, f"{node.total_ns / 1e6:,.3f} ms"] for node in nodes],
        "hovertemplate": "<b>%{label}</b><br>%{customdata[0]}<br>%{customdata[1]}, %{percentRoot:.1%}<extra></extra>",
        "marker": {"colors": [node.colour for node in nodes], "line": {"width": 1, "color": "rgba(255,255,255,0.6)"}},
        "tiling": {"orientation": "v", "pad": 0},
        "textfont": {"family": MONOSPACE, "size": 12, "color": "#1b1b1b"},
        "textposition": "middle left",
        "pathbar": {"visible": True, "thickness": 22},
        "sort": True,
    }
    layout = {
        "margin": {"l": 0, "r": 0, "t": 26, "b": 0},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "uniformtext": {"mode": "hide", "minsize": 10},
        "height": 60 + 24 * _depth(root),
    }
    return {"data": [icicle], "layout": layout}


def _add(root: Node, stack: Stack, ns: int) -> None:
    node = root
    for frame in stack:
        child = node.children.setdefault((frame.file, frame.line, frame.function), _node(frame))
        child.total_ns += ns
        node = child


def _node(frame: StackFrame) -> Node:
    colour = LIBRARY_COLOUR
    if frame.user:
        colour = USER_COLOURS[crc32(frame.file.encode()) % len(USER_COLOURS)]
    label = f"{frame.function}  {PurePath(frame.file).name}:{frame.line}"
    return Node(label, f"{frame.file}:{frame.line}", colour)


def _rows(node: Node, parent: str, name: str, least_ns: float) -> Iterator[tuple[str, str, Node]]:
    """Id, id of the parent, and node, for every node that is large enough to see."""
    yield name, parent, node
    for number, child in enumerate(sorted(node.children.values(), key=lambda child: -child.total_ns)):
        if child.total_ns > least_ns:
            yield from _rows(child, name, f"{name}.{number}", least_ns)


def _depth(node: Node) -> int:
    return 1 + max((_depth(child) for child in node.children.values()), default=0)
