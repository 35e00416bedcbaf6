"""Quantum chemistry cell: restricted Hartree-Fock of H2 in plain JAX; the bond is found by its gradient.

Gaussians of STO-3G, whose integrals have closed forms for s orbitals. The density comes from a fixed number of steps of
the self-consistent field, so that `jax.grad` goes through all of it.

Source: Szabo and Ostlund 1996, "Modern Quantum Chemistry": appendix A (integrals), equation 3.219 (exponents), section
3.5.2 (energy of -1.1167 hartree at 1.4 bohr, least energy at 1.346 bohr).
"""

from __future__ import annotations

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

EXPONENTS, COEFFICIENTS = (0.168856, 0.623913, 3.42525), (0.444635, 0.535328, 0.154329)
STEPS = 8  # of the field: by symmetry one is enough
SEARCH = 40  # steps down the gradient


def run() -> Finding:
    """Runs the cell."""
    import jax
    import jax.numpy as jnp
    from jax.scipy.special import erf

    a, c = jnp.array(EXPONENTS), jnp.array(COEFFICIENTS)
    c = c * (2 * a / jnp.pi) ** 0.75  # of normed Gaussians

    def boys(t):
        small = t < 1e-4
        safe = jnp.where(small, 1.0, t)
        return jnp.where(small, 1 - t / 3, 0.5 * jnp.sqrt(jnp.pi / safe) * erf(jnp.sqrt(safe)))

    def pair(p, q, x, y):
        """Sum of exponents, centre and overlap factor of two primitives at x and y."""
        total = p + q
        return total, (p * x + q * y) / total, jnp.exp(-p * q / total * (x - y) ** 2)

    def contract(integral, count):
        """A contracted integral of the primitives of `count` orbitals, as a function of their centres."""

        def contracted(*centres):
            grids = jnp.meshgrid(*[a] * count, indexing="ij")
            weights = jnp.prod(jnp.stack(jnp.meshgrid(*[c] * count, indexing="ij")), axis=0)
            return jnp.sum(weights * integral(*grids, *centres))

        for position in reversed(range(count)):
            axes: list[int | None] = [None] * count
            axes[position] = 0
            contracted = jax.vmap(contracted, tuple(axes))
        return contracted

    def overlap(p, q, x, y):
        total, _, factor = pair(p, q, x, y)
        return (jnp.pi / total) ** 1.5 * factor

    def kinetic(p, q, x, y):
        reduced = p * q / (p + q)
        return reduced * (3 - 2 * reduced * (x - y) ** 2) * overlap(p, q, x, y)

    def repulsion(p, q, r, s, x, y, z, w):
        one, left, first = pair(p, q, x, y)
        two, right, second = pair(r, s, z, w)
        factor = 2 * jnp.pi**2.5 / (one * two * jnp.sqrt(one + two))
        return factor * first * second * boys(one * two / (one + two) * (left - right) ** 2)

    def energy(distance):
        """Hartree, of two protons `distance` bohr apart."""
        nuclei = jnp.stack([jnp.zeros(()), distance])

        def attraction(p, q, x, y):
            total, centre, factor = pair(p, q, x, y)
            pulls = sum(boys(total * (centre - nucleus) ** 2) for nucleus in nuclei)
            return -2 * jnp.pi / total * factor * pulls

        s = contract(overlap, 2)(nuclei, nuclei)
        core = contract(kinetic, 2)(nuclei, nuclei) + contract(attraction, 2)(nuclei, nuclei)
        two = contract(repulsion, 4)(nuclei, nuclei, nuclei, nuclei)
        values, vectors = jnp.linalg.eigh(s)
        root = vectors / jnp.sqrt(values) @ vectors.T

        def field(density):
            return core + jnp.einsum("kl,ijkl->ij", density, two) - 0.5 * jnp.einsum("kl,ilkj->ij", density, two)

        def iterate(density, _):
            _, orbitals = jnp.linalg.eigh(root @ field(density) @ root)
            occupied = root @ orbitals[:, :1]
            return 2 * occupied @ occupied.T, None

        density, _ = jax.lax.scan(iterate, jnp.zeros((2, 2)), length=STEPS)
        return 0.5 * jnp.sum(density * (core + field(density))) + 1 / distance

    def relax(distance):
        def step(distance, _):
            return distance - jax.grad(energy)(distance), None

        return jax.lax.scan(step, distance, length=SEARCH)[0]

    samples = time_calls(lambda: jax.jit(energy)(1.4), items=1, unit="energies/s", calls=3)
    slope = float(jax.jit(jax.grad(energy))(1.8))
    by_hand = float(jax.jit(energy)(1.85) - jax.jit(energy)(1.75)) / 0.1
    return Finding(
        checks=[
            Check(
                name="energy",
                value=float(jax.jit(energy)(1.4)),
                expected=-1.1167,
                tolerance=1e-4,
                why="Szabo and Ostlund, section 3.5.2",
            ),
            Check(name="bond", value=float(jax.jit(relax)(1.4)), expected=1.346, tolerance=2e-3, why="the same"),
            Check(name="slope", value=slope, expected=by_hand, tolerance=1e-3, why="a difference quotient"),
        ],
        samples=samples,
    )
