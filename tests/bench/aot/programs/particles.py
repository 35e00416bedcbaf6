"""Forces between particles and a step of velocity Verlet, in plain JAX."""

import jax
import jax.numpy as jnp


def energy(positions, charges, box):
    delta = positions[:, None, :] - positions[None, :, :]
    delta = delta - box * jnp.round(delta / box)
    square = jnp.sum(delta * delta, axis=-1) + jnp.eye(positions.shape[0])
    inverse = (1.0 / square) ** 3
    pairs = 4.0 * (inverse * inverse - inverse) + charges[:, None] * charges[None, :] / jnp.sqrt(square)
    near = jnp.where(square < (box / 2.0) ** 2, pairs, 0.0)
    return 0.5 * jnp.sum(near * (1.0 - jnp.eye(positions.shape[0])))


def kinetic(velocities, masses):
    return 0.5 * jnp.sum(masses[:, None] * velocities * velocities)


@jax.jit
def step(positions, velocities, masses, charges, box):
    forces = -jax.grad(energy)(positions, charges, box)
    half = velocities + 0.0005 * forces / masses[:, None]
    positions = (positions + 0.001 * half) % box
    after = -jax.grad(energy)(positions, charges, box)
    velocities = half + 0.0005 * after / masses[:, None]
    return positions, velocities, energy(positions, charges, box) + kinetic(velocities, masses)


def make():
    vectors = jnp.zeros((64, 3))
    return vectors, vectors, jnp.ones((64,)), jnp.ones((64,)), jnp.float32(10.0)
