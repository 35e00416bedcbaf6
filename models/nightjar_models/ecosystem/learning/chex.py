"""Chex cell: its assertions pass for right values and fail for wrong ones, also inside jit and vmap."""

from __future__ import annotations

from collections.abc import Callable

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

    wrong: list[Callable[[], object]] = [
        lambda: chex.assert_shape(ones, (2, 4)),
        lambda: chex.assert_rank(ones, 3),
        lambda: chex.assert_type(ones, int),
        lambda: chex.assert_tree_all_finite({"a": ones / 0}),
        lambda: chex.assert_trees_all_equal({"a": ones}, {"a": 2 * ones}),
        lambda: chex.assert_equal_shape([ones, ones.T]),
        retrace,
        negative,
    ]
    samples = time_calls(lambda: double(ones), items=1, unit="calls/s", calls=50)
    moved = jax.tree.map(lambda leaf: leaf + 1, State(position=ones, step=0))  # type: ignore[call-arg]
    stopped = 0
    for call in wrong:
        try:
            call()
        except (AssertionError, ValueError):
            stopped += 1
    chex.assert_trees_all_close(double(ones), 2 * ones)
    chex.assert_rank(ones, 2)
    chex.assert_type(ones, float)
    chex.assert_tree_all_finite({"a": ones})
    chex.assert_trees_all_equal({"a": ones}, {"a": ones})
    chex.assert_equal_shape([ones, 2 * ones])
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
