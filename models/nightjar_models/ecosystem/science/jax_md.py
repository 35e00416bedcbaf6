"""JAX MD cell: Lennard-Jones energies by their formula, energy kept by velocity Verlet, neighbour lists that agree."""

from __future__ import annotations

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

PARTICLES, STEPS = 64, 200


def run() -> Finding:
    """Runs the cell."""
    import jax
    import jax.numpy as jnp
    from jax_md import energy, partition, simulate, space

    displacement, shift = space.periodic(6.0)
    potential = energy.lennard_jones_pair(displacement)
    pair = jnp.array([[0.0, 0.0, 0.0], [1.5, 0.0, 0.0]])
    grid = jnp.stack(jnp.meshgrid(*[jnp.arange(4) * 1.5] * 3, indexing="ij"), axis=-1).reshape(-1, 3)

    init, apply = simulate.nve(potential, shift, 2e-3)
    state = init(jax.random.key(0), grid, kT=0.2)

    @jax.jit
    def advance(state):
        return jax.lax.fori_loop(0, STEPS, lambda _, moving: apply(moving), state)

    samples = time_calls(lambda: advance(state).position, items=STEPS, unit="steps/s", calls=3)

    def total(state):
        return float(potential(state.position) + 0.5 * jnp.sum(state.momentum**2 / state.mass))

    end = advance(state)
    neighbours, listed = energy.lennard_jones_neighbor_list(displacement, 6.0, format=partition.Sparse)
    found = neighbours.allocate(end.position)
    return Finding(
        checks=[
            Check(
                name="pair_energy",
                value=float(potential(pair)),
                expected=4 * (1.5**-12 - 1.5**-6),
                tolerance=1e-5,
                why="4 (r^-12 - r^-6) at r = 1.5, below the onset of the cut-off",
            ),
            Check(
                name="energy_drift",
                value=abs(total(end) / total(state) - 1),
                expected=0.0,
                tolerance=1e-3,
                why=f"velocity Verlet keeps it over {STEPS} steps",
            ),
            Check(
                name="neighbour_list_difference",
                value=float(jnp.abs(listed(end.position, found) / potential(end.position) - 1)),
                expected=0.0,
                tolerance=1e-4,
                why="the neighbours' energy is the energy of all pairs",
            ),
        ],
        samples=samples,
    )
