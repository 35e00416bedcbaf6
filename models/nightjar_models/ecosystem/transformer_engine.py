"""TransformerEngine cell: it imports with this JAX, has its recipes, and computes a layer in FP8.

Importing and making recipes need no GPU. Its layers need one even to be traced, so without one the answer is "cannot
tell", after the import has been tried.
"""

from __future__ import annotations

from nightjar_models.ecosystem.cell import CannotTellError, Check, Finding, time_calls

TOKENS, WIDTH, HIDDEN = 1024, 512, 2048


def run() -> Finding:
    """Runs the cell."""
    import jax
    import jax.numpy as jnp
    import transformer_engine.jax as te
    import transformer_engine.jax.flax as te_flax
    from transformer_engine.common import recipe

    recipes = [recipe.DelayedScaling(), recipe.MXFP8BlockScaling()]
    if jax.default_backend() != "gpu":
        names = " and ".join(type(entry).__name__ for entry in recipes)
        raise CannotTellError(f"it imports and makes {names}, but its layers need an NVIDIA GPU, found CPU")
    layer = te_flax.LayerNormMLP(intermediate_dim=HIDDEN, return_layernorm_output=False)
    tokens = jax.random.normal(jax.random.key(0), (TOKENS, WIDTH), jnp.bfloat16)
    variables = layer.init(jax.random.key(1), tokens)
    exact = layer.apply(variables, tokens)[0]
    mesh = te.MeshResource()
    with te.autocast(enabled=True, recipe=recipes[0], mesh_resource=mesh):
        scaled = layer.init(jax.random.key(1), tokens)
        apply = jax.jit(lambda given: layer.apply(scaled, given, mutable=True)[0][0])
        samples = time_calls(lambda: apply(tokens), items=TOKENS, unit="tokens/s")
        coarse = apply(tokens)
    error = jnp.linalg.norm((coarse - exact).astype(jnp.float32)) / jnp.linalg.norm(exact.astype(jnp.float32))
    return Finding(
        checks=[
            Check(
                name="fp8_relative_error",
                value=float(error),
                expected=0.0,
                tolerance=0.1,
                why="FP8 has 3 bits of mantissa: about 0.04 for a product of many",
            )
        ],
        samples=samples,
    )
