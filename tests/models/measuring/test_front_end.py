"""The front end of a step: the calls of Python are counted alike each time, and lowering is told from tracing."""

import cProfile
import sys

import jax
import jax.numpy as jnp
import pytest

from nightjar_models.measuring.front_end import count_calls, time_lowering
from nightjar_models.training.train import dispatch


def test_python_functions_are_counted_and_no_others() -> None:
    def leaf() -> int:
        return len("abc")

    def three() -> int:
        return leaf() + leaf()

    with count_calls() as calls:
        three()
    with count_calls() as more:
        three()
        leaf()
    assert calls.count is not None
    assert more.count == calls.count + 1
    assert calls.count >= 3


def test_a_tracer_that_calls_more_is_seen_in_the_count() -> None:
    def program(x: jax.Array) -> jax.Array:
        return jnp.sin(x) * 2 + x

    def slower(x: jax.Array) -> jax.Array:
        for _ in range(10_000):
            (lambda: None)()
        return program(x)

    counts = []
    for function in (program, program, slower):
        with count_calls() as calls:
            jax.jit(lambda x, function=function: function(x)).lower(1.0)
        counts.append(calls.count or 0)
    assert counts[2] - counts[1] == pytest.approx(10_000, abs=200)


def test_tracing_and_lowering_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def lower() -> str:
        jax.monitoring.record_event_duration_secs("/jax/core/compile/jaxpr_trace_duration", 50.0)
        jax.monitoring.record_event_duration_secs("/jax/core/compile/jaxpr_to_mlir_module_duration", 0.25)
        return "lowered"

    times = iter([10.0, 12.0])
    monkeypatch.setattr("nightjar_models.measuring.front_end.time.perf_counter", lambda: next(times))
    assert time_lowering(lower) == ("lowered", 1.75, 0.25)


def test_a_run_without_steps_dispatched_nothing() -> None:
    assert dispatch([], None) == []
    assert [sample.name for sample in dispatch([0.1] * 7, None)] == ["dispatch_time"]


def test_another_profiler_is_left_at_work_and_nothing_is_counted() -> None:
    seen: list[str] = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: seen.append(frame.f_code.co_name))
    try:
        with count_calls() as calls:
            pass
        late()
    finally:
        sys.setprofile(before)
    assert calls.count is None
    assert "late" in seen
    profile = cProfile.Profile()
    profile.enable()
    try:
        with count_calls() as calls:
            pass
        late()
    finally:
        profile.disable()
    assert calls.count is None
    assert "late" in {getattr(entry.code, "co_name", "") for entry in profile.getstats()}
    assert [sample.name for sample in dispatch([0.1], calls)] == ["dispatch_time"]


def late() -> None:
    """Called after a count that was left out."""
