"""Equinox and Diffrax cell: a correct solution and gradient, and a neural field that learns a trajectory.

Three truths: the harmonic oscillator's cosine, the derivative of an exponential decay by its rate, and a spiral (a
linear system with a closed solution) on which a small network is trained through the solver. The three are solved at
once, and optimized little: to trace and compile a differentiated solver takes most of the cell's time.
"""

from __future__ import annotations

import math
from typing import Any

from nightjar_models.ecosystem.cell import Check, Finding, compile_quickly, time_calls

STEPS = 150  # the loss is then 2e-3 of the spiral's variance, in one second of training
WIDTH = 32
RATE, END = 0.3, 4.0


@compile_quickly()
def run() -> Finding:
    """Runs the cell."""
    import diffrax
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    times = np.linspace(0.0, END, 40, dtype=np.float32)
    fade, turn = np.exp(-RATE * times), 2.0 * times
    spiral = np.stack([fade * np.cos(turn), fade * np.sin(turn)], axis=1)
    optimizer = optax.adam(1e-2)

    class Field(eqx.Module):
        network: eqx.nn.MLP

        def __call__(self, t, y, rate):
            wave, left, curve = y
            return jnp.stack([wave[1], -wave[0]]), -rate * left, self.network(curve)

    def solve(model, rate):
        return diffrax.diffeqsolve(
            diffrax.ODETerm(model),
            diffrax.Tsit5(),
            t0=times[0],
            t1=times[-1],
            dt0=0.01,
            y0=(jnp.array([1.0, 0.0]), jnp.array(1.0), jnp.asarray(spiral[0])),
            args=rate,
            saveat=diffrax.SaveAt(ts=times),
            stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-6),
        ).ys

    @eqx.filter_jit
    def start():
        model = Field(eqx.nn.MLP(2, 2, WIDTH, 2, activation=jax.nn.tanh, key=jax.random.key(0)))
        return model, optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def train_step(model, memory):
        def loss(variables):
            wave, left, curve = solve(*variables)
            missed = jnp.mean((curve - spiral) ** 2)
            return missed + left[-1], (missed, wave[:, 0])  # the network moves the one, the rate the other

        (gradients, decayed), (missed, wave) = eqx.filter_grad(loss, has_aux=True)((model, jnp.array(RATE)))
        updates, memory = optimizer.update(gradients, memory)
        return eqx.apply_updates(model, updates), memory, (missed, wave, decayed)

    model, memory = start()
    found: Any = None

    def advance() -> object:
        nonlocal model, memory, found
        model, memory, found = train_step(model, memory)
        return found

    samples = time_calls(advance, items=1, unit="train steps/s", calls=STEPS)
    missed, wave, decayed = found
    return Finding(
        checks=[
            Check(
                name="oscillator_error",
                value=float(np.abs(np.asarray(wave) - np.cos(times)).max()),
                expected=0.0,
                tolerance=2e-5,
                why="cos t, rtol 1e-6",
            ),
            Check(
                name="decay_gradient",
                value=float(decayed),
                expected=-END * math.exp(-RATE * END),
                tolerance=1e-5,
                why="d exp(-k T) / dk",
            ),
            Check(
                name="unexplained_fraction",
                value=float(missed) / float(np.mean((spiral - spiral.mean(axis=0)) ** 2)),
                expected=0.0,
                tolerance=0.05,
                why="a spiral is learned; its mean explains nothing",
            ),
        ],
        samples=samples,
    )
