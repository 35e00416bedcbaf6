"""Equinox and Diffrax: is the solution right, its gradient, and can a neural field learn a trajectory?

Three truths: the harmonic oscillator's cosine, the derivative of an exponential decay by its rate, and a spiral (a
linear system with a closed solution) on which a small network is trained through the solver.
"""

from __future__ import annotations

import math
from typing import Any

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

STEPS = 150  # the loss is then 2e-3 of the spiral's variance, in one second of training
WIDTH = 32


def run() -> Finding:
    """Runs the cell."""
    import diffrax
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import optax

    def solve(field, start, times, args=None):
        return diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            diffrax.Tsit5(),
            t0=times[0],
            t1=times[-1],
            dt0=0.01,
            y0=start,
            args=args,
            saveat=diffrax.SaveAt(ts=times),
            stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-6),
        ).ys

    times = jnp.linspace(0.0, 2 * math.pi, 50)
    wave = solve(lambda t, y, _: jnp.stack([y[1], -y[0]]), jnp.array([1.0, 0.0]), times)
    wave_error = float(jnp.abs(wave[:, 0] - jnp.cos(times)).max())

    rate, end = 0.7, 2.0
    decayed = jax.grad(lambda k: solve(lambda t, y, a: -a * y, jnp.array(1.0), jnp.array([0.0, end]), k)[-1])(rate)

    class Field(eqx.Module):
        network: eqx.nn.MLP

        def __call__(self, t, y, args):
            return self.network(y)

    spiral_times = jnp.linspace(0.0, 4.0, 40)
    fade, turn = jnp.exp(-0.3 * spiral_times), 2.0 * spiral_times
    spiral = jnp.stack([fade * jnp.cos(turn), fade * jnp.sin(turn)], axis=1)
    model = Field(eqx.nn.MLP(2, 2, WIDTH, 2, activation=jax.nn.tanh, key=jax.random.key(0)))
    optimizer = optax.adam(1e-2)
    memory = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def train_step(model, memory):
        def loss(model):
            return jnp.mean((solve(model, spiral[0], spiral_times) - spiral) ** 2)

        value, gradients = eqx.filter_value_and_grad(loss)(model)
        updates, memory = optimizer.update(gradients, memory)
        return eqx.apply_updates(model, updates), memory, value

    value: Any = jnp.inf

    def advance() -> object:
        nonlocal model, memory, value
        model, memory, value = train_step(model, memory)
        return value

    samples = time_calls(advance, items=1, unit="train steps/s", calls=STEPS)
    unlearned = float(jnp.mean((spiral - spiral.mean(axis=0)) ** 2))
    return Finding(
        checks=[
            Check(name="oscillator_error", value=wave_error, expected=0.0, tolerance=2e-5, why="cos t, rtol 1e-6"),
            Check(
                name="decay_gradient",
                value=float(decayed),
                expected=-end * math.exp(-rate * end),
                tolerance=1e-5,
                why="d exp(-k T) / dk",
            ),
            Check(
                name="unexplained_fraction",
                value=float(value) / unlearned,
                expected=0.0,
                tolerance=0.05,
                why="a spiral is learned; its mean explains nothing",
            ),
        ],
        samples=samples,
    )
