"""Qwix cell: int8 weights and activations change a product by the error that rounding explains."""

from __future__ import annotations

from nightjar_models.ecosystem.cell import Check, Finding, time_calls


def run() -> Finding:
    """Runs the cell."""
    import jax
    import jax.numpy as jnp
    import qwix
    from flax import nnx

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(256, 512, rngs=rngs)
            self.second = nnx.Linear(512, 64, rngs=rngs)

        def __call__(self, x):
            return self.second(jax.nn.relu(self.first(x)))

    network = Network(nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (128, 256))
    rules = [qwix.QuantizationRule(module_path=".*", weight_qtype=jnp.int8, act_qtype=jnp.int8)]
    quantized = qwix.quantize_model(network, qwix.PtqProvider(rules), x)
    run_quantized = nnx.jit(lambda model, x: model(x))
    samples = time_calls(lambda: run_quantized(quantized, x), items=128, unit="rows/s", calls=20)
    exact, rounded = network(x), run_quantized(quantized, x)
    array = qwix.quantize(x, jnp.int8, channelwise_axes=[0])
    step = jnp.abs(x).max(axis=1, keepdims=True) / 127
    stored = {str(leaf.dtype) for leaf in jax.tree.leaves(nnx.state(quantized))}
    return Finding(
        checks=[
            Check(
                name="rounding_steps",
                value=float((jnp.abs(qwix.dequantize(array) - x) / step).max()),
                expected=0.25,
                tolerance=0.26,
                why="rounding errs by at most half a step",
            ),
            Check(
                name="relative_error",
                value=float(jnp.linalg.norm(rounded - exact) / jnp.linalg.norm(exact)),
                expected=0.01,
                tolerance=0.01,
                why="about 1 % with 8 bits",
            ),
            Check(name="int8_weights", value=float("int8" in stored), expected=1.0, tolerance=0, why="what is stored"),
        ],
        samples=samples,
    )
