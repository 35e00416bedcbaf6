"""Size of a traced step by the number of its layers: plain layers grow it evenly, `nnx.scan` leaves it as it is.

Counted are the operations of the program and the Python functions that are called to trace it, and not seconds, so that
the answer is the same on every machine. The time of `nnx.eval_shape`, which grows with the square of the number of
layers, is one of the canaries.

Source: flax.readthedocs.io, "Transforms: scan over layers".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from nightjar_models.architectures import gpt
from nightjar_models.measuring.front_end import count_calls
from nightjar_models.presets.config import Compute
from nightjar_models.presets.sizes import GPTConfig

DEPTHS = (2, 4, 8)
EVEN = 1.02  # times the calls of layers 3 and 4 that a later pair of layers may take


def trace_step(layers: int, *, scanned: bool) -> Callable[[], Any]:
    """Traces the loss and its gradients of a GPT."""
    sizes = GPTConfig(vocabulary=11, length=4, width=8, layers=layers, heads=2, feed_forward=16)
    model = nnx.eval_shape(lambda: gpt.GPT(sizes, Compute(scan_layers=scanned), rngs=nnx.Rngs(0)))
    graph, state = nnx.split(model)

    def step(state: Any, tokens: Any) -> Any:
        def loss(model: gpt.GPT) -> Any:
            return gpt.measure(model, {"tokens": tokens})["loss"].mean()

        return nnx.value_and_grad(loss)(nnx.merge(graph, state))

    tokens = jax.ShapeDtypeStruct((2, 5), jnp.int32)
    return lambda: jax.make_jaxpr(lambda state, tokens: jax.tree.leaves(step(state, tokens)))(state, tokens)


def count_operations(jaxpr: Any) -> int:
    """All operations, also those of inner programs, once each."""
    inner = [jax.tree.leaves(tuple(equation.params.values()), is_leaf=is_program) for equation in jaxpr.eqns]
    return len(jaxpr.eqns) + sum(
        count_operations(getattr(leaf, "jaxpr", leaf)) for leaves in inner for leaf in leaves if is_program(leaf)
    )


def is_program(leaf: Any) -> bool:
    return hasattr(leaf, "eqns")


@pytest.fixture(scope="module")
def operations() -> dict[bool, list[int]]:
    return {
        scanned: [count_operations(trace_step(layers, scanned=scanned)().jaxpr) for layers in DEPTHS]
        for scanned in (False, True)
    }


def test_plain_layers_add_the_same_operations_each(operations: dict[bool, list[int]]) -> None:
    two, four, eight = operations[False]
    assert four > two
    assert eight - four == 2 * (four - two)


def test_scanned_layers_are_one_program(operations: dict[bool, list[int]]) -> None:
    two, four, eight = operations[True]
    assert two == four == eight
    assert two < operations[False][2]


def test_tracing_calls_grow_evenly() -> None:
    calls = {scanned: list[int]() for scanned in (False, True)}
    for scanned, counts in calls.items():
        for layers in (2, *DEPTHS):  # what is traced once is traced before
            trace = trace_step(layers, scanned=scanned)
            with count_calls() as counted:
                trace()
            if counted.count is None:
                pytest.skip("another profiler of this process is at work: calls cannot be counted")
            counts.append(counted.count)
    _, two, four, eight = calls[False]
    assert (eight - four) / 2 < EVEN * (four - two)
    _, two, _, eight = calls[True]
    assert eight < EVEN * two
