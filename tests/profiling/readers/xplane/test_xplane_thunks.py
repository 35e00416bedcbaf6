"""When thunks of XLA:CPU ended, though XLA writes `end:` only after what it ran on the same thread meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from nightjar_profiling.readers.xplane.xplane import read_raw
from tests.profiling.builders import TraceBuilder

CLIENT, FIRST, SECOND = "tf_XLAPjRtCpuClient/1", "tf_XLAEigen/1", "tf_XLAEigen/2"
ZERO_NS = 1_000_000  # of the builder's threads


class Trace(TraceBuilder):
    """A trace of thunks of program 7, on any thread."""

    def run(self, line: str, name: str, start_ns: int, duration_ns: int, produced: int) -> Trace:
        self.event("/host:CPU", line, name, start_ns, duration_ns, hlo_op=name, program_id=7, run_id=1, _p=produced)
        return self

    def close(self, line: str, name: str, at_ns: int, consumed: int) -> Trace:
        self.event("/host:CPU", line, f"end: {name}", at_ns, 0, _c=consumed)
        return self

    def task(self, line: str, start_ns: int, stop_ns: int) -> Trace:
        self.event("/host:CPU", line, "ThreadpoolListener::StartRegion", start_ns, 0)
        self.event("/host:CPU", line, "ThreadpoolListener::StopRegion", stop_ns, 0)
        return self

    def execute(self, line: str, start_ns: int, duration_ns: int) -> Trace:
        self.event("/host:CPU", line, "ThunkExecutor::Execute", start_ns, duration_ns)
        return self


def spans_of(trace: TraceBuilder, folder: Path) -> dict[str, tuple[int, int, int]]:
    """By instruction: start, end, and by how much the end may be off."""
    ops = read_raw(trace.write(folder)).tables["ops"]
    rows = ops.select("instruction", "start_ns", "duration_ns", "uncertain_ns").rows()
    return {name: (start - ZERO_NS, start - ZERO_NS + duration, off) for name, start, duration, off in rows}


def test_a_thunk_ends_where_the_first_one_began_that_ran_before_its_end_was_written(tmp_path: Path) -> None:
    trace = Trace().run(CLIENT, "sine.1", 0, 300, 1).task(FIRST, 100, 9_000)
    trace.run(FIRST, "dot.1", 350, 7_000, 2).close(FIRST, "dot.1", 7_349, 2).run(FIRST, "add.1", 7_400, 10, 3)
    trace.close(FIRST, "add.1", 7_409, 3).close(FIRST, "sine.1", 7_500, 1)
    assert spans_of(trace, tmp_path) == {"sine.1": (0, 350, 50), "dot.1": (350, 7_350, 0), "add.1": (7_400, 7_410, 0)}


def test_a_thunk_ends_where_the_executor_began_to_handle_what_it_completed(tmp_path: Path) -> None:
    trace = Trace().run(CLIENT, "sine.1", 0, 10, 1).task(FIRST, 100, 900)
    trace.execute(FIRST, 300, 400).run(FIRST, "dot.1", 340, 300, 2).close(FIRST, "sine.1", 720, 1)
    assert spans_of(trace, tmp_path)["sine.1"] == (0, 300, 200)


def test_of_a_chain_of_thunks_whose_ends_are_written_backwards_each_ends_where_the_next_began(tmp_path: Path) -> None:
    trace = Trace().run(CLIENT, "a", 0, 5, 1).task(FIRST, 10, 900)
    trace.run(FIRST, "b", 100, 5, 2).close(FIRST, "a", 120, 1)
    trace.task(SECOND, 110, 800).run(SECOND, "c", 250, 400, 3).close(SECOND, "c", 649, 3).close(SECOND, "b", 700, 2)
    assert {name: end for name, (_, end, _) in spans_of(trace, tmp_path).items()} == {"a": 100, "b": 250, "c": 650}


def test_thunks_that_ran_in_an_earlier_task_of_the_thread_end_no_other(tmp_path: Path) -> None:
    trace = Trace().run(CLIENT, "a", 0, 5, 1).task(FIRST, 10, 200).run(FIRST, "other", 20, 100, 2)
    trace.task(FIRST, 210, 400).close(FIRST, "a", 390, 1)
    assert spans_of(trace, tmp_path)["a"] == (0, 390, 0)


def test_a_thunk_that_ended_while_another_ran_around_it_is_not_ended_by_what_that_one_follows(tmp_path: Path) -> None:
    trace = Trace().run(CLIENT, "a", 0, 5, 1).task(FIRST, 10, 900).run(FIRST, "before", 20, 30, 2)
    trace.run(FIRST, "around", 100, 500, 3).close(FIRST, "a", 400, 1)  # it waits, and works on others' tasks
    assert spans_of(trace, tmp_path)["a"] == (0, 400, 0)


def test_a_thunk_whose_work_was_done_before_its_call_had_returned_ends_then(tmp_path: Path) -> None:
    trace = Trace().run(CLIENT, "a", 0, 500, 1)
    trace.event("/host:CPU", FIRST, "ThreadpoolListener::StartRegion", 10, 0)  # the trace ends before this task
    trace.run(FIRST, "b", 100, 600, 2).close(FIRST, "a", 800, 1)
    assert spans_of(trace, tmp_path)["a"] == (0, 100, 400)


def test_without_the_tasks_of_the_pool_a_thunk_whose_end_is_late_ends_with_its_own_event(tmp_path: Path) -> None:
    trace = Trace().run(CLIENT, "a", 0, 300_000, 7).run(SECOND, "b", 1_000_000, 10_000_000, 8)
    trace.close(SECOND, "b", 11_000_000, 8).close(SECOND, "a", 11_001_000, 7)
    assert spans_of(trace, tmp_path) == {"a": (0, 300_000, 700_000), "b": (1_000_000, 11_000_000, 0)}


def test_a_kernel_of_a_gpu_has_no_uncertain_end(tmp_path: Path) -> None:
    trace = TraceBuilder().event("/device:GPU:0", "Stream #14(Kernel)", "gemm", 500, 40, correlation_id=5)
    assert read_raw(trace.write(tmp_path)).tables["ops"]["uncertain_ns"].to_list() == [None]


@dataclass
class Executor:
    """A chain of thunks as XLA's executor runs and records it: true ends, and the trace.

    Of each thunk: how long its call takes, and for how long a task of the pool works on after that (0: it is done).
    """

    thunks: list[tuple[int, int]]
    trace: Trace = field(default_factory=Trace)
    ends: dict[str, int] = field(default_factory=dict)
    workers: int = 0

    def run(self, number: int, line: str, now: int) -> int:
        """Runs the thunks from a number on; returns when the thread is free again."""
        for at in range(number, len(self.thunks)):
            name, (call, work) = f"op.{at}", self.thunks[at]
            self.trace.run(line, name, now, call, at + 1)
            if work:
                self._complete(at, now + call // 2, now + call + work)
                return now + call
            self.trace.close(line, name, now + call - 1, at + 1)
            self.ends[name] = now + call
            now += call + 3
        return now

    def _complete(self, number: int, begin: int, done: int) -> None:
        self.workers += 1
        line = f"tf_XLAEigen/{self.workers}"
        following = number + 1 < len(self.thunks)
        self.ends[f"op.{number}"] = done
        free = self.run(number + 1, line, done) if following else done
        self.trace.close(line, f"op.{number}", free + following, number + 1).task(line, begin, free + 5)


@given(st.lists(st.tuples(st.integers(2, 50), st.integers(0, 40)), min_size=1, max_size=12))
def test_the_ends_of_any_chain_of_thunks_are_those_of_the_executor(thunks: list[tuple[int, int]]) -> None:
    executor = Executor(thunks)
    executor.run(0, CLIENT, 0)
    with TemporaryDirectory() as folder:
        found = spans_of(executor.trace, Path(folder))
    assert {name: end for name, (_, end, _) in found.items()} == executor.ends
