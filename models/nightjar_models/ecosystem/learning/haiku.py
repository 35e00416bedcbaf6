"""Haiku cell: a linear layer learns the least-squares solution, batch statistics are kept, an RNN unrolls."""

from __future__ import annotations

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

STEPS = 400


def run() -> Finding:
    """Runs the cell."""
    import haiku as hk
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 4)).astype(np.float32)
    y = (x @ np.array([1.0, -2.0, 0.5, 3.0]) + 0.7 + rng.normal(size=256)).astype(np.float32)
    exact, *_ = np.linalg.lstsq(np.c_[x, np.ones(256)], y, rcond=None)

    model = hk.without_apply_rng(hk.transform(lambda inputs: hk.Linear(1)(inputs)[:, 0]))
    optimizer = optax.adam(0.05)
    parameters = model.init(jax.random.key(0), x)
    memory = optimizer.init(parameters)

    @jax.jit
    def train_step(parameters, memory):
        gradients = jax.grad(lambda values: jnp.mean((model.apply(values, x) - y) ** 2))(parameters)
        updates, memory = optimizer.update(gradients, memory)
        return optax.apply_updates(parameters, updates), memory

    def advance() -> object:
        nonlocal parameters, memory
        parameters, memory = train_step(parameters, memory)
        return parameters

    samples = time_calls(advance, items=1, unit="train steps/s", calls=STEPS)
    learned = np.r_[np.asarray(parameters["linear"]["w"])[:, 0], np.asarray(parameters["linear"]["b"])]

    norm = hk.without_apply_rng(hk.transform_with_state(lambda inputs: hk.BatchNorm(True, True, 0.9)(inputs, True)))
    scales, averages = norm.init(jax.random.key(0), x)
    normed, averages = norm.apply(scales, averages, x)
    tracked = averages["batch_norm/~/mean_ema"]["average"]

    def unroll(inputs):
        core = hk.VanillaRNN(3)
        start = core.initial_state(inputs.shape[1])
        return hk.dynamic_unroll(core, inputs, start)[0], hk.static_unroll(core, inputs, start)[0]

    network = hk.without_apply_rng(hk.transform(unroll))
    sequences = x.reshape(8, 32, 4)
    weights = network.init(jax.random.key(1), sequences)
    scanned, stepped = network.apply(weights, sequences)
    first = np.maximum(sequences[:1] @ np.asarray(weights["vanilla_rnn/linear"]["w"]), 0)  # biases and state are zero
    return Finding(
        checks=[
            Check(
                name="least_squares_error",
                value=float(np.abs(learned - exact).max()),
                expected=0.0,
                tolerance=2e-3,
                why="the solution of numpy.linalg.lstsq",
            ),
            Check(name="batch_mean", value=float(abs(normed.mean(0)).max()), expected=0, tolerance=1e-6, why="normed"),
            Check(name="batch_spread", value=float(normed.std()), expected=1.0, tolerance=1e-3, why="what is normed"),
            Check(
                name="tracked_mean_error",
                value=float(np.abs(np.asarray(tracked)[0] - x.mean(axis=0)).max()),
                expected=0.0,
                tolerance=1e-6,
                why="the first batch, its bias corrected",
            ),
            Check(
                name="unroll_difference",
                value=float(np.abs(np.r_[scanned - stepped, scanned[:1] - first]).max()),
                expected=0.0,
                tolerance=1e-6,
                why="a scan and a loop agree, and the first step with NumPy",
            ),
        ],
        samples=samples,
    )
