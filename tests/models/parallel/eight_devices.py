"""What eight virtual devices compute: run by the tests in a process of its own, which prints one JSON object.

Each function returns numbers that `test_parallel.py` judges; all share one start of JAX.
"""

import json
import logging
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nightjar_models.kernels.rms_norm import rms_norm
from nightjar_models.measuring.facts import read_facts
from nightjar_models.parallel.matmul import gather_matmul, matmul_scatter
from nightjar_models.parallel.mesh import parse_mesh
from nightjar_models.parallel.pipeline import broadcast, masked_sum, run_pipeline
from nightjar_models.parallel.ring import ring_attention
from nightjar_models.parallel.sharding import make_mesh
from tests.machine import find_lack

P: Any = PartitionSpec


def random(*shape: int, seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def difference(found: Any, expected: Any) -> float:
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    parts = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in pairs]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in parts)


def value_and_gradients(function: Callable[..., jax.Array], *arguments: Any) -> tuple[Any, dict[str, Any]]:

    def total(*arguments: Any) -> tuple[jax.Array, jax.Array]:
        out = function(*arguments)
        return (out * jnp.cos(jnp.arange(out.size).reshape(out.shape))).sum(), out

    step = jax.jit(jax.value_and_grad(total, tuple(range(len(arguments))), has_aux=True)).lower(*arguments).compile()
    (_, out), gradients = step(*arguments)
    return (out, gradients), read_facts("program", step)["collectives"]


def plain_attention(q: jax.Array, k: jax.Array, v: jax.Array, *, causal: bool) -> jax.Array:
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    return jax.nn.dot_product_attention(q, k, v, is_causal=causal).swapaxes(1, 2)


def check_ring() -> dict[str, Any]:
    mesh = make_mesh(parse_mesh("dp2.sp4"))
    arguments = random(2, 4, 16, 8), random(2, 2, 16, 8, seed=1), random(2, 2, 16, 8, seed=2)
    report: dict[str, Any] = {}
    for causal in (True, False):
        ring = lambda q, k, v, causal=causal: ring_attention(q, k, v, mesh=mesh, causal=causal)  # noqa: E731
        plain = lambda q, k, v, causal=causal: plain_attention(q, k, v, causal=causal)  # noqa: E731
        found, collectives = value_and_gradients(ring, *arguments)
        expected, _ = value_and_gradients(plain, *arguments)
        report["causal" if causal else "full"] = difference(found, expected)
        report["collectives"] = collectives
    return report


def check_pipeline() -> dict[str, Any]:
    mesh = make_mesh(parse_mesh("pp4.dp2"))
    weights, x, shift, scale = random(8, 6, 6) / 3, random(8, 6, seed=1), random(8, 6, seed=2), random(6, seed=3)

    def stage(own: jax.Array, x: jax.Array, others: tuple[Any, ...]) -> jax.Array:
        shift, scale = others
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w + shift) * scale, None), x, own)[0]

    def pipelined(weights: jax.Array, x: jax.Array, shift: jax.Array, scale: jax.Array) -> jax.Array:
        made: jax.Array = run_pipeline(stage, weights, x, (shift,), (scale,), mesh=mesh, microbatches=4)
        return made

    found, collectives = value_and_gradients(pipelined, weights, x, shift, scale)
    expected, _ = value_and_gradients(lambda w, x, *others: stage(w, x, others), weights, x, shift, scale)
    return {"difference": difference(found, expected), "collectives": collectives}


def on_ring(function: Callable[..., Any], places: tuple[Any, ...], out: Any) -> Callable[..., Any]:
    mesh: Mesh = make_mesh(parse_mesh("tp8"))
    return jax.shard_map(function, mesh=mesh, in_specs=places, out_specs=out, check_vma=False)


def check_matmul() -> dict[str, Any]:
    x, w, back = random(16, 12), random(12, 24, seed=1), random(24, 12, seed=2)
    tiled = on_ring(lambda x, w: gather_matmul(x, w, "tensor"), (P("tensor"), P(None, "tensor")), P(None, "tensor"))
    gathered, first = value_and_gradients(tiled, x, w)
    scattered = on_ring(lambda y, w: matmul_scatter(y, w, "tensor"), (P(None, "tensor"), P("tensor")), P("tensor"))
    summed, second = value_and_gradients(scattered, x @ w, back)
    return {
        "gather": difference(gathered, value_and_gradients(jnp.matmul, x, w)[0]),
        "scatter": difference(summed, value_and_gradients(jnp.matmul, x @ w, back)[0]),
        "collectives": [first, second],
    }


def check_broadcast() -> dict[str, Any]:
    values = jnp.arange(8.0).at[3].set(jnp.nan)
    run = on_ring(lambda x: broadcast(x, "tensor", source=5, platform="cpu"), (P("tensor"),), P("tensor"))
    flags = on_ring(lambda x: masked_sum(x, "tensor", source=2), (P("tensor"),), P("tensor"))
    return {"values": jax.jit(run)(values).tolist(), "flags": jax.jit(flags)(jnp.arange(8) == 2).tolist()}


def check_rms_norm() -> dict[str, Any]:
    """The collectives of forward and backward, by the way in which x is split; both rows and width are."""
    if find_lack("compiler") is not None:
        return {}
    mesh = make_mesh(parse_mesh("dp2.sp2.tp2"))
    x, scale = random(4, 8, 16), random(16, seed=1)
    report: dict[str, Any] = {}
    for name, spec in (("rows", P("data", "sequence")), ("width", P("data", None, "tensor"))):

        def total(x: jax.Array, scale: jax.Array) -> jax.Array:
            return (rms_norm(x, scale) * jnp.cos(jnp.arange(x.size).reshape(x.shape))).sum()

        where, everywhere = NamedSharding(mesh, spec), NamedSharding(mesh, P())
        gradient = jax.value_and_grad(total, (0, 1))
        run = jax.jit(gradient, in_shardings=(where, everywhere), out_shardings=(everywhere, (where, everywhere)))
        step = run.lower(x, scale).compile()
        found = step(jax.device_put(x, where), jax.device_put(scale, everywhere))
        facts = read_facts("rms_norm", step)
        report[name] = {
            "difference": difference(found, gradient(x, scale)),
            "collectives": facts["collectives"],
            "calls": {k: v["count"] for k, v in facts["custom_calls"].items()},
        }
    return report


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("jax").setLevel(logging.WARNING)
    checks: dict[str, Callable[[], dict[str, Any]]] = {
        "ring": check_ring,
        "pipeline": check_pipeline,
        "matmul": check_matmul,
        "broadcast": check_broadcast,
        "rms_norm": check_rms_norm,
    }
    print(json.dumps({name: check() for name, check in checks.items()}))


if __name__ == "__main__":
    main()
