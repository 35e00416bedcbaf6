"""e3nn cell: spherical harmonics are normed and turn with space, and so do tensor products."""

from __future__ import annotations

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

POINTS = 256


def run() -> Finding:
    """Runs the cell."""
    import e3nn_jax as e3nn
    import jax
    import jax.numpy as jnp

    points = jax.random.normal(jax.random.key(0), (POINTS, 3))
    rotation = e3nn.rand_matrix(jax.random.key(1), ())

    @jax.jit
    def describe(points):
        harmonics = e3nn.spherical_harmonics("0e + 1o + 2e + 3o", points, normalize=True, normalization="component")
        return harmonics, e3nn.tensor_product(harmonics, harmonics, filter_ir_out=("0e", "1o", "2e"))

    samples = time_calls(lambda: describe(points)[1].array, items=POINTS, unit="points/s", calls=20)
    harmonics, product = describe(points)
    turned_harmonics, turned = describe(points @ rotation.T)
    expected_product = product.transform_by_matrix(rotation)
    expected_harmonics = harmonics.transform_by_matrix(rotation)
    return Finding(
        checks=[
            Check(
                name="harmonics_norm",
                value=float(jnp.mean(jnp.sum(harmonics.array**2, axis=-1))),
                expected=1.0 + 3.0 + 5.0 + 7.0,
                tolerance=1e-4,
                why="2 l + 1 for each degree l",
            ),
            Check(
                name="harmonics_turn",
                value=float(jnp.abs(turned_harmonics.array - expected_harmonics.array).max()),
                expected=0.0,
                tolerance=1e-4,
                why="Y(R x) = D(R) Y(x)",
            ),
            Check(
                name="product_turns",
                value=float(jnp.abs(turned.array - expected_product.array).max()),
                expected=0.0,
                tolerance=1e-3,
                why="the product of two turned things is the turned product",
            ),
        ],
        samples=samples,
    )
