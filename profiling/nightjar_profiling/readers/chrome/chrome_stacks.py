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
    for number, event in enumerate(trace.events):
        if event.category in (PYTHON, OP, *CALLS):
            lanes[event.lane].append(number)
    numbers: dict[tuple[int | None, str], int] = {}
    sequences: dict[int, int] = {}
    parents: dict[int, int] = {}
    for members in lanes.values():
        _read_lane(trace.events, members, stacks, numbers, sequences, parents)
    for number in sorted(parents):
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
    numbers: dict[tuple[int | None, str], int],
    sequences: dict[int, int],
    parents: dict[int, int],
) -> None:
    """The frames of a thread; `sequences` gets the forward op of each sequence number, `parents` the nesting."""
    inside = find_parents([events[number] for number in members])
    frames: list[int | None] = []
    for number, parent in zip(members, inside, strict=True):
        event = events[number]
        frame = None
        if parent != NO_PARENT:
            frame = frames[parent]
            parents[number] = members[parent]
        else:
            parents[number] = NO_PARENT
        if event.category == PYTHON:
            frame = _number_frame(event.name, frame, stacks, numbers)
        elif frame is not None:
            stacks.frame_of_event[number] = frame
            sequence = event.args.get("Sequence number")
            if (
                isinstance(sequence, int)
                and not event.args.get("Fwd thread id")
                and not event.name.startswith(AUTOGRAD)
            ):
                sequences.setdefault(sequence, frame)
        frames.append(frame)


def _take_from_forward(
    events: Sequence[Event], number: int, parents: Mapping[int, int], sequences: Mapping[int, int], stacks: Stacks
) -> None:
    """Gives an op inside autograd the frame of its forward op."""
    event = events[number]
    if event.category not in (OP, *CALLS):
        return
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
    name: str, parent: int | None, stacks: Stacks, numbers: dict[tuple[int | None, str], int]
) -> int | None:
    match = FRAME.fullmatch(name)
    if match is None:  # a builtin, or the call of a module, which has no line
        return parent
    key = (parent, name)
    if key not in numbers:
        numbers[key] = len(stacks.frames) + 1
        stacks.frames.append(
            {
                "frame_id": numbers[key],
                "parent_id": parent,
                "file": place_file(match[1]),
                "line": int(match[2]),
                "function": match[3],
            }
        )
    return numbers[key]


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
