"""Python stacks of the ops of a PyTorch trace.

In: the events of a trace that PyTorch made `with_stack=True`. Out: frames, and for each op of the host the frame that
called it. PyTorch records function calls, so a frame's line is that at which the function begins. An op that autograd
runs belongs to the op of the forward pass with the same sequence number.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nightjar_profiling.readers.chrome.chrome_events import ChromeTrace, Event, Lane
from nightjar_profiling.readers.chrome.chrome_nesting import NO_PARENT, find_parents

PYTHON, OP, CALLS = "python_function", "cpu_op", ("cuda_runtime", "cuda_driver")
WORK = frozenset((OP, *CALLS))
FRAME = re.compile(r"(.+\.py|<[^>]*>)\((\d+)\): (.*)", re.DOTALL)
AUTOGRAD = "autograd::engine::evaluate_function"
# PyTorch leaves out the beginnings of paths that are in `sys.path`.
INSTALLED = re.compile(r"(?:torch|torchvision|torchaudio|torchgen|functorch|triton|numpy|transformers|lightning)/")
LIBRARY, STANDARD_LIBRARY = "site-packages", "lib/python3.0"


@dataclass(slots=True)
class Stacks:
    """The frames of a trace, and the frame of each op or call of the host by its number among the events."""

    frames: list[dict[str, Any]] = field(default_factory=list)
    frame_of_event: dict[int, int] = field(default_factory=dict)
    from_forward: set[int] = field(default_factory=set)
    by_correlation: dict[int, int] = field(default_factory=dict)


def read_stacks(trace: ChromeTrace) -> Stacks:
    """The Python stacks of a trace; empty where it has none."""
    stacks = Stacks()
    lanes: Mapping[Lane, list[int]] = defaultdict(list)
    for number, (lane, _, category, _, _, _) in enumerate(trace.events):
        if category == PYTHON or category in WORK:
            lanes[lane].append(number)
    numbers: dict[tuple[int | None, str], int | None] = {}
    sequences: dict[int, int] = {}
    parents: dict[int, int] = {}
    for members in lanes.values():
        _read_lane(trace.events, members, stacks, numbers, sequences, parents)
    for number in sorted(number for number in parents if trace.events[number].category in WORK):
        _take_from_forward(trace.events, number, parents, sequences, stacks)
    for number, frame in stacks.frame_of_event.items():
        event = trace.events[number]
        if event.category in CALLS and isinstance(event.args.get("correlation"), int):
            stacks.by_correlation[event.args["correlation"]] = frame
    return stacks


def _read_lane(
    events: Sequence[Event],
    members: Sequence[int],
    stacks: Stacks,
    numbers: dict[tuple[int | None, str], int | None],
    sequences: dict[int, int],
    parents: dict[int, int],
) -> None:
    """The frames of a thread; `sequences` gets the forward op of each sequence number, `parents` the nesting."""
    lane = [events[number] for number in members]
    frames: list[int | None] = []
    for number, parent, (_, name, category, _, _, args) in zip(members, find_parents(lane), lane, strict=True):
        frame = None
        if parent != NO_PARENT:
            frame = frames[parent]
            parents[number] = members[parent]
        else:
            parents[number] = NO_PARENT
        if category == PYTHON:
            frame = _number_frame(name, frame, stacks, numbers)
        elif frame is not None:
            stacks.frame_of_event[number] = frame
            sequence = args.get("Sequence number")
            if isinstance(sequence, int) and not args.get("Fwd thread id") and not name.startswith(AUTOGRAD):
                sequences.setdefault(sequence, frame)
        frames.append(frame)


def _take_from_forward(
    events: Sequence[Event], number: int, parents: Mapping[int, int], sequences: Mapping[int, int], stacks: Stacks
) -> None:
    """Gives an op inside autograd, or a call in it, the frame of its forward op."""
    event = events[number]
    parent = parents[number]
    if event.name.startswith(AUTOGRAD):
        frame = sequences.get(event.args.get("Sequence number", NO_PARENT))
    elif parent in stacks.from_forward:
        frame = stacks.frame_of_event[parent]
    else:
        return
    if frame is not None:
        stacks.frame_of_event[number] = frame
        stacks.from_forward.add(number)


def _number_frame(
    name: str, parent: int | None, stacks: Stacks, numbers: dict[tuple[int | None, str], int | None]
) -> int | None:
    """The frame of a call; a builtin, or the call of a module, has no line, and its frame is its caller's."""
    key = (parent, name)
    if key in numbers:
        return numbers[key]
    match = FRAME.fullmatch(name)
    if match is None:
        numbers[key] = parent
        return parent
    frame = numbers[key] = len(stacks.frames) + 1
    stacks.frames.append(
        {
            "frame_id": frame,
            "parent_id": parent,
            "file": place_file(match[1]),
            "line": int(match[2]),
            "function": match[3],
        }
    )
    return frame


def place_file(file: str) -> str:
    """A path as PyTorch records it, with the folder that it leaves out.

    >>> place_file("torch/nn/modules/linear.py"), place_file("threading.py"), place_file("train.py")
    ('site-packages/torch/nn/modules/linear.py', 'lib/python3.0/threading.py', 'train.py')
    """
    if INSTALLED.match(file):
        return f"{LIBRARY}/{file}"
    first = file.split("/")[0].removesuffix(".py")
    if not file.startswith(("/", "<")) and first in sys.stdlib_module_names:
        return f"{STANDARD_LIBRARY}/{file}"
    return file
