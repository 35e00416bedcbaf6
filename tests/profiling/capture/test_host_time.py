"""The host's own time by line: its sum is the clock's, and each line has what was spent in it."""

import gc
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from nightjar_profiling.analyses.host_time import THE_LINE, find_busiest, read_host_time, tabulate_host_time
from nightjar_profiling.capture.hook.host_time import HostSampler, Key, divide_spans


def spin(sampler: HostSampler, samples: int) -> None:
    while sampler.samples < samples:
        pass


def test_the_time_of_all_stacks_is_that_of_the_clock_and_its_line_is_found(tmp_path: Path) -> None:
    interval_s, sampler = sys.getswitchinterval(), HostSampler()
    sampler.start()
    spin(sampler, 20)
    sampler.stop(tmp_path / "rank0000.host")
    assert sys.getswitchinterval() == interval_s
    assert not any(thread.name == "nightjar-host-time" for thread in threading.enumerate())
    document = read_host_time(tmp_path)
    assert document is not None
    assert document["elapsed_ns"] == sum(ns for ns, _ in document["stacks"])
    assert document["samples"] >= 20
    frames = {tuple(stack[0]) for _, stack in document["stacks"]}
    first = spin.__code__.co_firstlineno
    assert {(__file__, line, "spin") for line in (first + 1, first + 2)} & frames


def nest(depth: int) -> int:
    values = [depth, [depth]]  # where a frame was, there is something else soon
    return len(values) if depth == 0 else nest(depth - 1) + len(values)


def test_a_collection_while_a_stack_is_read_does_no_harm(tmp_path: Path) -> None:
    sampler, here, thresholds = HostSampler(), threading.get_ident(), gc.get_threshold()

    def let_the_sampled_thread_run(*_: object) -> None:
        if threading.get_ident() != here:
            time.sleep(0.001)

    sampler.start()
    gc.callbacks.append(let_the_sampled_thread_run)
    gc.set_threshold(5)
    try:
        end = time.monotonic() + 20
        while sampler.samples < 200 and sampler.sampler is not None and sampler.sampler.is_alive():
            assert time.monotonic() < end
            nest(sampler.samples % 7)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(let_the_sampled_thread_run)
    assert gc.isenabled()
    sampler.stop(tmp_path / "rank0000.host")
    assert sampler.samples >= 200


def test_a_thread_that_has_ended_costs_no_sample(tmp_path: Path) -> None:
    sampler = HostSampler()

    def work() -> None:
        sampler.start()
        spin(sampler, 3)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    sampler.stop(tmp_path / "rank0000.host")
    assert read_host_time(tmp_path) is not None


def test_a_sampler_that_never_began_leaves_nothing(tmp_path: Path) -> None:
    HostSampler().stop(tmp_path / "rank0000.host")
    assert not list(tmp_path.iterdir())
    assert read_host_time(tmp_path) is None
    (tmp_path / "rank0000.host").write_text("{", encoding="utf-8")
    assert read_host_time(tmp_path) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"elapsed_ns": "long"},
        {"elapsed_ns": 1e400},
        {"samples": -1},
        {"stacks": 5},
        {"stacks": [[1]]},
        {"stacks": [["1", []]]},
        {"stacks": [[1, [["train.py", 3, 4]]]]},
        {"stacks": [[1, [["train.py", "3", "step"]]]]},
    ],
)
def test_what_the_tracer_did_not_write_is_no_sample(tmp_path: Path, changes: dict[str, Any]) -> None:
    document = {"elapsed_ns": 10, "samples": 1, "stacks": [[10, [["train.py", 3, "step"]]]]}
    (tmp_path / "rank0000.host").write_text(json.dumps(document), encoding="utf-8")
    assert read_host_time(tmp_path) == document
    (tmp_path / "rank0000.host").write_text(json.dumps({**document, **changes}), encoding="utf-8")
    assert read_host_time(tmp_path) is None


def test_time_goes_to_the_innermost_line_of_user_code_and_says_what_it_called() -> None:
    array, mine = "/usr/lib/python3.11/site-packages/jax/_src/array.py", "/home/me/train.py"
    outer = [mine, 9, "<module>"]
    stacks = [
        [600, [[array, 5, "_value"], [mine, 3, "step"], outer]],
        [200, [[mine, 3, "step"], outer]],
        [150, [outer]],
        [50, []],
    ]
    host = tabulate_host_time(
        {"elapsed_ns": 1000, "samples": 5, "stacks": stacks},
        lambda file: file == mine,
        lambda file, line: f"line {line}",
        {(mine, 3): 70},
    )
    assert (host["elapsed_ns"], host["samples"]) == (1000, 5)
    assert host["uncertain"] == pytest.approx(0.447, abs=1e-3)  # of five samples
    step, module = host["lines"]
    assert step == {
        "file": mine,
        "line": 3,
        "function": "step",
        "source": "line 3",
        "host_ns": 800,
        "fraction": 0.8,
        "inside": "jax._src.array._value",
        "inside_ns": 600,
        "device_ns": 70,
    }
    assert (module["line"], module["host_ns"], module["inside"], module["device_ns"]) == (9, 150, THE_LINE, 0)
    assert find_busiest(host) == module  # in `step` the host waited for the device
    assert find_busiest({**host, "lines": [step]}) is None


COMPUTING: Key = ((1, 10),)
WAITING: Key = ((2, 20),)
OTHER: Key = ((3, 30),)


def test_a_span_between_two_stacks_is_divided_by_the_time_that_the_thread_ran() -> None:
    spans = {(COMPUTING, COMPUTING): (100, 90), (WAITING, WAITING): (100, 10), (COMPUTING, WAITING): (80, 40)}
    assert divide_spans(spans) == {COMPUTING: 140, WAITING: 140}
    spans[COMPUTING, WAITING] = (80, 80)  # more than either runs: all of it computed
    assert divide_spans(spans) == {COMPUTING: 180, WAITING: 100}


def test_without_a_contrast_both_stacks_have_half() -> None:
    assert divide_spans({(COMPUTING, OTHER): (11, 11)}) == {COMPUTING: 5, OTHER: 6}
    alike = {(COMPUTING, COMPUTING): (100, 100), (OTHER, OTHER): (100, 95), (OTHER, COMPUTING): (10, 10)}
    assert divide_spans(alike) == {COMPUTING: 105, OTHER: 105}


def test_a_line_that_was_seen_seldom_runs_as_its_function_does() -> None:
    next_line: Key = ((1, 11),)
    spans = {(COMPUTING, next_line): (100, 100), (WAITING, WAITING): (100, 0), (next_line, WAITING): (10, 7)}
    assert divide_spans(spans) == {COMPUTING: 50, next_line: 57, WAITING: 103}


def test_stacks_beyond_the_most_are_one_without_frames() -> None:
    sampler = HostSampler()
    sampler.codes = dict.fromkeys(range(5010), spin.__code__)
    sampler.spans = {(((number, 1),), ((number, 1),)): (10, 10) for number in range(5_010)}
    stacks = sampler.describe()["stacks"]
    assert len(stacks) == 5_001
    assert stacks[-1] == [100, []]
    assert json.dumps(stacks)
