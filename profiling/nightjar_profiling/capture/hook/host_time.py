"""Samples of the Python stack of the thread that runs the steps, while the trace runs.

Another thread looks at that stack every two milliseconds, or later: it needs a core and the interpreter's lock, which
Python hands over within `SWITCH_S`, or as a call into C gives it up. On a busy machine samples fall more often on waits
of the sampled thread. The time between two samples is therefore divided between the two stacks, so that the time for
which the thread ran, by its own clock, comes out right: each stack runs for the share of its time that its function, or
that line alone if it was seen often, runs between two samples of it. The sum over all stacks is the time on the clock.

A stack is read in one call of C, with the garbage collector off. Before Python 3.12 a collection may begin while the
object of another thread's frame is made; its destructors may let that thread run on, and return: the new object then
belongs to a frame that is gone, and its `f_back` is arbitrary.

Standard library only: it runs in the Python of the program, whichever that is.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import accumulate, chain, islice, repeat, takewhile
from operator import attrgetter, is_not, methodcaller
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PERIOD_S = 0.002
SWITCH_S = 0.0001
DEEPEST = 200  # frames of a stack
MOST_STACKS = 5_000  # the others are one, without frames
SEEN_OFTEN_NS = 20_000_000
LEAST_CONTRAST = 0.1  # of the shares for which two stacks run: below, their clock does not distinguish them
HERE = str(Path(__file__).parent)

Places = tuple[tuple[CodeType, "int | None"], ...]
"""Code and line of the frames of a stack, the innermost first."""
Key = tuple[tuple[int, int], ...]
"""The frames of a stack, the innermost first: id of the code, and line."""
Spans = Mapping[tuple[Key, Key], tuple[int, int]]
"""Time between a sample of a stack and the next one of a stack, and for how much of it the thread ran; nanoseconds."""


class HostSampler:
    """Sums the time of the thread that starts it by stack."""

    def __init__(self) -> None:
        self.spans: dict[tuple[Key, Key], tuple[int, int]] = {}
        self.codes: dict[int, CodeType] = {}  # by id, and so kept alive
        self.samples = 0
        self.began_ns = self.last_ns = self.last_ran_ns = 0
        self.last: Key | None = None
        self.clock: int | None = None  # of the processor time of the sampled thread; not on every system
        self.stopping = threading.Event()
        self.sampler: threading.Thread | None = None
        self.interval_s = sys.getswitchinterval()

    def start(self) -> None:
        """Samples this thread from now on."""
        sampled = threading.get_ident()
        if hasattr(time, "pthread_getcpuclockid"):
            self.clock = time.pthread_getcpuclockid(sampled)
        self.began_ns = self.last_ns = time.perf_counter_ns()
        self.last_ran_ns = self.read_ran_ns()
        self.interval_s = sys.getswitchinterval()
        sys.setswitchinterval(min(self.interval_s, SWITCH_S))
        self.sampler = threading.Thread(target=self.run, args=(sampled,), name="nightjar-host-time", daemon=True)
        self.sampler.start()

    def run(self, sampled: int) -> None:
        """Takes samples of a thread until it is to stop."""
        with contextlib.suppress(Exception):  # another Python: the samples so far count
            while not self.stopping.wait(PERIOD_S):
                self.add(read_stack(map(methodcaller("get", sampled), iter(sys._current_frames, None))))

    def read_ran_ns(self) -> int:
        """For how long the sampled thread has run; one that has ended runs no more."""
        try:
            return 0 if self.clock is None else time.clock_gettime_ns(self.clock)
        except OSError:
            return self.last_ran_ns

    def add(self, places: Places) -> None:
        """Notes the time since the last sample, between that one's stack and this one."""
        now_ns, ran_ns, stack = time.perf_counter_ns(), self.read_ran_ns(), list[tuple[int, int]]()
        for code, line in places:
            if code.co_filename.rpartition("/")[0] != HERE:
                self.codes.setdefault(id(code), code)
                stack.append((id(code), line or code.co_firstlineno))
        key = tuple(stack)
        pair = (key if self.last is None else self.last, key)
        passed, ran = self.spans.get(pair, (0, 0))
        self.spans[pair] = (passed + now_ns - self.last_ns, ran + ran_ns - self.last_ran_ns)
        self.samples += 1
        self.last, self.last_ns, self.last_ran_ns = key, now_ns, ran_ns

    def stop(self, path: Path) -> None:
        """Ends the sampling, in the thread that began it, and writes the samples; does nothing if it never began."""
        if self.sampler is None:
            return
        self.stopping.set()
        self.sampler.join(timeout=1)
        self.sampler = None
        sys.setswitchinterval(self.interval_s)
        self.add(read_stack([sys._getframe()]))
        path.write_text(json.dumps(self.describe()), encoding="utf-8")

    def describe(self) -> dict[str, Any]:
        """The time by stack: file, line and function of each frame, the innermost first; the longest time first."""
        ranked = sorted(divide_spans(self.spans).items(), key=lambda item: -item[1])
        stacks: list[Any] = [
            [ns, [[(code := self.codes[number]).co_filename, line, code.co_name] for number, line in key]]
            for key, ns in ranked[:MOST_STACKS]
        ]
        rest_ns = sum(ns for _, ns in ranked[MOST_STACKS:])
        if rest_ns:
            stacks.append([rest_ns, []])
        return {"elapsed_ns": self.last_ns - self.began_ns, "samples": self.samples, "stacks": stacks}


def read_stack(frames: Iterable[FrameType | None]) -> Places:
    """The stack of the first of these frames; none if that is None. No name holds a frame, nor so its arrays."""
    links: Iterable[Any] = chain(islice(frames, 1), repeat("f_back", DEEPEST - 1))
    outward = accumulate(links, getattr)
    places = map(attrgetter("f_code", "f_lineno"), takewhile(partial(is_not, None), outward))
    collects = gc.isenabled()
    gc.disable()
    try:
        return tuple(places)
    finally:
        if collects:
            gc.enable()


def divide_spans(spans: Spans) -> dict[Key, int]:
    """The time of each stack; the sum is the total of all spans.

    A thread computed, then waited, and was seen running for 6 of the 10 ns between the two samples:

    >>> computing, waiting = ((1, 1),), ((2, 2),)
    >>> same = {(computing, computing): (50, 50), (waiting, waiting): (50, 0)}
    >>> divide_spans({**same, (computing, waiting): (10, 6)})
    {((1, 1),): 56, ((2, 2),): 54}
    """
    of_lines: dict[Key, tuple[int, int]] = {}
    of_functions: dict[Key, tuple[int, int]] = {}
    for (a, b), (passed, ran) in spans.items():
        if a == b:
            of_lines[a] = passed, ran
        if name_function(a) == name_function(b):
            before = of_functions.get(name_function(a), (0, 0))
            of_functions[name_function(a)] = before[0] + passed, before[1] + ran
    shares: dict[Key, float] = {}
    for key in {key for pair in spans for key in pair}:
        passed, ran = of_lines.get(key, (0, 0))
        if passed < SEEN_OFTEN_NS:
            passed, ran = of_functions.get(name_function(key), (0, 0))
        if passed:
            shares[key] = ran / passed
    times: dict[Key, int] = {}
    for (a, b), (passed, ran) in spans.items():
        part = passed // 2
        contrast = shares.get(a, 0.0) - shares.get(b, 0.0)
        if a in shares and b in shares and abs(contrast) > LEAST_CONTRAST:
            part = min(max(round((ran - passed * shares[b]) / contrast), 0), passed)
        times[a] = times.get(a, 0) + part
        times[b] = times.get(b, 0) + passed - part
    return times


def name_function(key: Key) -> Key:
    """The stack without the line that its innermost function is at."""
    return tuple((code, 0) for code, _ in key[:1]) + key[1:]
