"""FP8 cell: Linen's `nn.Dense(dot_general_cls=fp8_ops.Fp8DotGeneralOp)` in a `TrainState` loop; NNX's form is ours.

The scales and histories are variables of a collection of their own: their "gradient" is their next value. Both forms
begin with the same weights and train the same curve; without FP8 the loop learns as much.

Source: flax.readthedocs.io, "User Guide on Using FP8"; Micikevicius et al. 2022, "FP8 Formats for Deep Learning".
"""

from __future__ import annotations

import warnings

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

INPUTS, HIDDEN, OUTPUTS = 32, 64, 16
EXAMPLES, STEPS, RATE = 256, 100, 0.2


def run() -> Finding:
    """Runs the cell."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from flax import linen, nnx
    from flax.linen import fp8_ops
    from flax.training.train_state import TrainState

    from nightjar_models.architectures.precision import Fp8Product, Fp8Scaling

    x = jax.random.normal(jax.random.key(1), (EXAMPLES, INPUTS), jnp.bfloat16)
    labels = jnp.tanh(x @ jax.random.normal(jax.random.key(2), (INPUTS, OUTPUTS)) / 4)

    class Network(linen.Module):
        product: type | None = fp8_ops.Fp8DotGeneralOp

        @linen.compact
        def __call__(self, x):
            x = linen.Dense(HIDDEN, dtype=jnp.bfloat16, dot_general_cls=self.product)(x)
            return linen.Dense(OUTPUTS, dtype=jnp.bfloat16, dot_general_cls=self.product)(linen.relu(x))

    def train_linen(network):
        parameters, scales = begin(network)
        state = TrainState.create(apply_fn=network.apply, params=parameters, tx=optax.sgd(RATE))

        @jax.jit
        def step(state, scales):
            def loss(parameters, scales):
                return jnp.mean((state.apply_fn({"params": parameters, **scales}, x) - labels) ** 2)

            value, (gradients, scales) = jax.value_and_grad(loss, (0, 1))(state.params, scales)
            return state.apply_gradients(grads=gradients), scales, value

        samples = time_calls(lambda: step(state, scales), items=EXAMPLES, unit="examples/s", calls=5)
        losses = []
        for _ in range(STEPS):
            state, scales, value = step(state, scales)
            losses.append(float(value))
        return losses, scales, samples

    def begin(network):
        scales = dict(network.init(jax.random.key(0), x))
        return scales.pop("params"), scales

    class Layers(nnx.Module):
        def __init__(self, first, second):
            rngs = nnx.Rngs(0)
            self.first = nnx.Linear(INPUTS, HIDDEN, dtype=jnp.bfloat16, dot_general=Fp8Product(), rngs=rngs)
            self.second = nnx.Linear(HIDDEN, OUTPUTS, dtype=jnp.bfloat16, dot_general=Fp8Product(), rngs=rngs)
            self.first.kernel[...], self.second.kernel[...] = first["kernel"], second["kernel"]

        def __call__(self, x):
            return self.second(nnx.relu(self.first(x)))

    @nnx.jit
    def step_nnx(model, optimizer):
        learned = nnx.DiffState(0, (nnx.Param, Fp8Scaling))
        value, gradients = nnx.value_and_grad(lambda m: jnp.mean((m(x) - labels) ** 2), argnums=learned)(model)
        optimizer.update(model, nnx.filter_state(gradients, nnx.Param))
        nnx.update(model, nnx.filter_state(gradients, Fp8Scaling))
        return value

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flax prefers Fp8DirectDotGeneralOp now
        losses, scales, samples = train_linen(Network())
        first, second = begin(Network())[0].values()
    plain, _, _ = train_linen(Network(product=None))
    model = Layers(first, second)
    optimizer = nnx.Optimizer(model, optax.sgd(RATE), wrt=nnx.Param)
    ours = [float(step_nnx(model, optimizer)) for _ in range(STEPS)]
    amax = scales[fp8_ops.OVERWRITE_WITH_GRADIENT]["Dense_0"]["Fp8DotGeneralOp_0"]["input_amax_history"]
    return Finding(
        checks=[
            Check(
                name="nnx_difference",
                value=float(np.abs(np.array(ours) / np.array(losses) - 1).max()),
                expected=0,
                tolerance=0.02,
                why="the same products, rounded to bfloat16 before or after",
            ),
            Check(name="loss_left", value=losses[-1] / losses[0], expected=0, tolerance=0.2, why="it learns"),
            Check(name="plain_ratio", value=losses[-1] / plain[-1], expected=1, tolerance=0.2, why="as without FP8"),
            Check(
                name="amax",
                value=float(amax.max()),
                expected=float(jnp.abs(x).max()),
                tolerance=0,
                why="the largest input is in the history of its scale",
            ),
        ],
        samples=samples,
    )
