"""What a CPU reaches at best, on a clock and with an XLA whose times are given."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from nightjar_profiling.capture.hook import devices

PRODUCT_S, SUM_S = 0.02, 0.05


class Array:
    """Knows its shape; what is computed with it takes its time on the clock."""

    def __init__(self, shape: tuple[int, ...], clock: list[float]) -> None:
        self.shape, self.clock = shape, clock

    def __matmul__(self, other: Array) -> Array:
        self.clock[0] += PRODUCT_S
        return self

    def __add__(self, other: float) -> Array:
        self.clock[0] += SUM_S * (1 + (self.clock[0] < 1))  # the first ones are slow: the fastest counts
        return self


def install_jax(monkeypatch: pytest.MonkeyPatch, *platforms: str) -> dict[str, tuple[int, ...]]:
    """A module `jax` and a clock; the shapes that were asked for, by type."""
    clock, shapes = [0.6], dict[str, tuple[int, ...]]()

    def ones(shape: tuple[int, ...], dtype: str) -> Array:
        shapes[f"{dtype} {len(shape)}"] = shape
        return Array(shape, clock)

    def jit(compute: Callable[..., Any]) -> Callable[..., Any]:
        return compute

    jax = SimpleNamespace(
        local_devices=lambda: [SimpleNamespace(platform=platform) for platform in platforms],
        numpy=SimpleNamespace(ones=ones),
        jit=jit,
        block_until_ready=lambda array: array,
    )
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setattr(devices, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    return shapes


def test_the_peak_of_a_cpu_counts_products_sums_and_bytes_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = install_jax(monkeypatch, "cpu")
    peak = devices.measure_peak()
    (side, _), (length,) = shapes["float32 2"], shapes["float32 1"]
    assert 64 << 20 < 4 * length < 1 << 30  # more than caches hold, and no burden for a small machine
    assert peak == {
        "flops_per_s": {"f32": pytest.approx(2 * side**3 / PRODUCT_S)},
        "bytes_per_s": pytest.approx(2 * 4 * length / SUM_S),
    }


@pytest.mark.parametrize("platforms", [("gpu",), ("cpu", "gpu")])
def test_another_device_has_no_measured_peak(monkeypatch: pytest.MonkeyPatch, platforms: tuple[str, ...]) -> None:
    install_jax(monkeypatch, *platforms)
    assert devices.measure_peak() is None
