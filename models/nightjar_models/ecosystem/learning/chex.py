"""Chex cell: its assertions pass for right values and fail for wrong ones, also inside jit and vmap."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from nightjar_models.ecosystem.cell import Check, Finding, time_calls


def run() -> Finding:
    """Runs the cell."""
    import chex
    import jax
    import jax.numpy as jnp

    @chex.dataclass
    class State:
        position: chex.Array
        step: int

    ones = jnp.ones((2, 3))

    @jax.jit
    @chex.assert_max_traces(n=1)
    def double(values):
        chex.assert_shape(values, (None, 3))
        return 2 * values

    @chex.chexify
    @jax.jit
    def positive(values):
        chex.assert_trees_all_close(values, jnp.abs(values))
        return values

    def retrace() -> None:
        double(jnp.ones((5, 3)))

    def negative() -> None:
        positive(-ones)
        chex.block_until_chexify_assertions_complete()

    judged: list[tuple[Callable[..., object], tuple[Any, ...], tuple[Any, ...]]] = [  # right and wrong values
        (chex.assert_shape, (ones, (2, 3)), (ones, (2, 4))),
        (chex.assert_rank, (ones, 2), (ones, 3)),
        (chex.assert_type, (ones, float), (ones, int)),
        (chex.assert_tree_all_finite, ({"a": ones},), ({"a": ones / 0},)),
        (chex.assert_trees_all_equal, ({"a": ones}, {"a": ones}), ({"a": ones}, {"a": 2 * ones})),
        (chex.assert_equal_shape, ([ones, 2 * ones],), ([ones, ones.T],)),
    ]
    wrong: list[Callable[[], object]] = [*(partial(check, *values) for check, _, values in judged), retrace, negative]
    samples = time_calls(lambda: double(ones), items=1, unit="calls/s", calls=50)
    moved = jax.tree.map(lambda leaf: leaf + 1, State(position=ones, step=0))  # type: ignore[call-arg]
    stopped = 0
    for call in wrong:
        try:
            call()
        except (AssertionError, ValueError):
            stopped += 1
    chex.assert_trees_all_close(double(ones), 2 * ones)
    for check, values, _ in judged:
        check(*values)
    return Finding(
        checks=[
            Check(name="stopped", value=stopped, expected=len(wrong), tolerance=0, why="each of these is wrong"),
            Check(
                name="dataclass_sum",
                value=float(moved.position.sum() + moved.step),
                expected=13.0,
                tolerance=0,
                why="six twos and a one: every field is a leaf",
            ),
        ],
        samples=samples,
    )
