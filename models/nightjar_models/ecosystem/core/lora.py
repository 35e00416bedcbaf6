"""LoRA cell: `nnx.LoRALinear` and `optax.multi_transform` fine-tune a network whose own weights stay as they are.

The new task differs from the learned one by a matrix of rank two in the first layer: adapters of rank two can learn it.

Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models": W + A B, with B = 0 at the start.
"""

from __future__ import annotations

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

INPUTS, HIDDEN, OUTPUTS, RANK = 32, 64, 8, 2
EXAMPLES, STEPS = 2048, 300


def run() -> Finding:
    """Runs the cell."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import nnx

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.LoRALinear(INPUTS, HIDDEN, lora_rank=RANK, rngs=rngs)
            self.second = nnx.LoRALinear(HIDDEN, OUTPUTS, lora_rank=RANK, rngs=rngs)

        def __call__(self, x):
            return self.second(jnp.tanh(self.first(x)))

    def loss(model, x, y):
        return jnp.mean((model(x) - y) ** 2)

    @nnx.jit
    def train(model, optimizer, x, y):
        value, gradient = nnx.value_and_grad(loss)(model, x, y)
        optimizer.update(model, gradient)
        return value

    network = Network(nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(1), (EXAMPLES, INPUTS))
    first, second = network.first.kernel[...], network.second.kernel[...]
    left, right = (jax.random.normal(jax.random.key(2), (size, RANK)) / 4 for size in (INPUTS, HIDDEN))
    shift = left @ right.T
    learned = jnp.tanh(x @ first) @ second  # the task that the weights solve exactly
    wanted = jnp.tanh(x @ (first + shift)) @ second
    untouched = float(jnp.abs(network(x) - learned).max())

    def label(path, _):
        return "adapters" if path[-1] in ("lora_a", "lora_b") else "weights"

    parameters = nnx.state(network, nnx.Param)
    labels = nnx.map_state(label, parameters)
    parts = {"adapters": optax.adam(1e-2), "weights": optax.set_to_zero()}
    optimizer = nnx.Optimizer(network, optax.multi_transform(parts, labels), wrt=nnx.Param)
    before = float(loss(network, x, wanted))
    samples = time_calls(lambda: train(network, optimizer, x, wanted), items=EXAMPLES, unit="examples/s", calls=STEPS)
    after = float(loss(network, x, wanted))
    merged = []
    for layer in (network.first, network.second):
        adapters = layer.lora
        merged.append(layer.kernel[...] + adapters.lora_a[...] @ adapters.lora_b[...])
    by_hand = jnp.tanh(x @ merged[0] + network.first.bias[...]) @ merged[1] + network.second.bias[...]  # type: ignore[index]
    count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(network, nnx.LoRAParam)))
    kept = bool((network.first.kernel[...] == first).all() and (network.second.kernel[...] == second).all())
    return Finding(
        checks=[
            Check(name="first_output", value=untouched, expected=0, tolerance=1e-5, why="B is zero at the start"),
            Check(name="weights_kept", value=kept, expected=1, tolerance=0, why="bit for bit: they are not trained"),
            Check(
                name="trained_numbers",
                value=count,
                expected=RANK * (INPUTS + HIDDEN) + RANK * (HIDDEN + OUTPUTS),
                tolerance=0,
                why="A and B of both layers",
            ),
            Check(name="loss_left", value=after / before, expected=0, tolerance=0.02, why="the change has rank two"),
            Check(
                name="merged",
                value=float(jnp.abs(network(x) - by_hand).max()),
                expected=0,
                tolerance=1e-4,
                why="W + A B in place of adapters",
            ),
        ],
        samples=samples,
    )
