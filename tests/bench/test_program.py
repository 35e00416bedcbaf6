"""What counts as the same program in the race of training steps?"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.bench.models.program import describe


def step(state: dict[str, Any], batch: Any, rate: float = 0.5) -> Any:
    slope = jax.grad(lambda weights: jnp.tanh(batch @ weights).sum())(state["weights"])
    return {"weights": state["weights"] - rate * slope, "count": state["count"] + 1}


def test_names_make_no_other_program() -> None:
    weights, count, batch = jnp.ones((8, 4)), jnp.zeros(()), jnp.ones((16, 8))

    def another(state: tuple[Any, Any], x: Any) -> Any:
        found = step({"weights": state[1], "count": state[0]}, x)
        return found["count"], found["weights"]

    ours = jax.jit(step).lower({"weights": weights, "count": count}, batch)
    assert describe(ours) == describe(jax.jit(another).lower((count, weights), batch))


def test_how_values_would_lie_on_several_devices_makes_no_other_program() -> None:
    state, batch = {"weights": jnp.ones((8, 4)), "count": jnp.zeros(())}, jnp.ones((16, 8))
    mesh = jax.make_mesh((1, 1), ("data", "tensor"))
    rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())  # type: ignore[no-untyped-call]
    over = {"weights": rows, "count": whole}
    spread = jax.jit(step, in_shardings=(over, rows), out_shardings=over)
    assert "sharding=" in (spread.lower(state, batch).compile().as_text() or "")
    assert describe(spread.lower(state, batch)) == describe(jax.jit(step).lower(state, batch))


def test_another_number_one_sum_more_or_a_donated_argument_is_another_program() -> None:
    state, batch = {"weights": jnp.ones((8, 4)), "count": jnp.zeros(())}, jnp.ones((16, 8))
    ours = describe(jax.jit(step).lower(state, batch))
    assert describe(jax.jit(lambda s, b: step(s, b, 0.25)).lower(state, batch)) != ours
    assert describe(jax.jit(lambda s, b: step(s, b + b.mean())).lower(state, batch)) != ours
    assert describe(jax.jit(step, donate_argnums=0).lower(state, batch)) != ours
