"""PennyLane cell: circuits on the JAX interface give the cosines and gradients that quantum mechanics gives."""

from __future__ import annotations

import math

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

ANGLE = 0.543


def run() -> Finding:
    """Runs the cell."""
    import jax
    import jax.numpy as jnp
    import pennylane as qml

    device = qml.device("default.qubit", wires=2)

    @qml.qnode(device, interface="jax")
    def turn(angle):
        qml.RX(angle, wires=0)
        return qml.expval(qml.PauliZ(0))

    @qml.qnode(device, interface="jax")
    def entangle(angle):
        qml.RY(angle, wires=0)
        qml.CNOT(wires=[0, 1])
        return qml.probs(wires=[0, 1])

    slope = jax.jit(jax.grad(turn))
    samples = time_calls(lambda: slope(jnp.array(ANGLE)), items=1, unit="gradients/s", calls=20)
    even = entangle(jnp.array(ANGLE))
    return Finding(
        checks=[
            Check(
                name="expectation",
                value=float(jax.jit(turn)(jnp.array(ANGLE))),
                expected=math.cos(ANGLE),
                tolerance=1e-6,
                why="<Z> after a turn about x is its cosine",
            ),
            Check(
                name="gradient",
                value=float(slope(jnp.array(ANGLE))),
                expected=-math.sin(ANGLE),
                tolerance=1e-6,
                why="- sin",
            ),
            Check(
                name="bell_probability",
                value=float(even[3]),
                expected=math.sin(ANGLE / 2) ** 2,
                tolerance=1e-6,
                why="sin^2 of half the angle, and the other qubit agrees",
            ),
        ],
        samples=samples,
    )
