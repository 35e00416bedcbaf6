"""FP8 matrix products by Flax, with delayed scaling.

In: the factors of a layer's product. Out: bfloat16 products whose factors were rounded to FP8. Each factor is divided
by a scale, so that its largest recent value is the largest number of FP8. The scales come from the largest values of
the last steps, so that no extra pass over the data is needed. Scales and histories are variables that a step replaces
by their own "gradients": `Fp8Scaling`.

| part | type |
|---|---|
| weights, as the optimizer keeps them | float32 |
| factors of the forward product | float8_e4m3fn |
| gradient that goes backwards | float8_e5m2 |
| result and gradients of activations | bfloat16 |
| gradients of weights | float32 |
| scales and histories | float32 |

On NVIDIA GPUs from Ada and Hopper on XLA makes one FP8 product of it (cuBLASLt); elsewhere, the CPU too, the factors
are rounded and multiplied in bfloat16: the same numbers, slower.

Of Flax's operations it is `Fp8DirectDotGeneralOp`; `Fp8DotGeneralOp`, which rounds to FP8 and back before a bfloat16
product, is deprecated in Flax 0.12. `TEProduct` is TransformerEngine's, by the recipes of `te_layers.py`.

Source: Micikevicius et al. 2022, "FP8 Formats for Deep Learning"; flax.linen.fp8_ops of Flax 0.12.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.linen import fp8_ops
from jaxtyping import Array, Float

from nightjar_models.architectures import te_layers
from nightjar_models.parallel.sharding import traced_device
from nightjar_models.presets.config import Compute

HISTORY = 1024  # steps, Flax's own
_COLLECTION = fp8_ops.OVERWRITE_WITH_GRADIENT
_SCALING = ("input", "kernel", "output_grad")


class Fp8Scaling(nnx.Variable[Any]):
    """A scale, a history or a count: a step sets it to its gradient."""


def make_scaling(factors: Collection[str]) -> nnx.Dict[Fp8Scaling]:
    """The first scale and history of each factor."""
    scales = {f"{name}_scale": jnp.ones((1,), jnp.float32) for name in factors}
    histories = {f"{name}_amax_history": jnp.zeros((HISTORY,), jnp.float32) for name in factors}
    return nnx.Dict(
        {
            name: Fp8Scaling(value, out_sharding=(None,), eager_sharding=False)
            for name, value in (scales | histories).items()
        }
    )


class Fp8Product(nnx.Module):
    """The `dot_general` of a layer in FP8, with the scales and histories of its factors."""

    def __init__(self) -> None:
        self.scaling = make_scaling(_SCALING)

    def __call__(self, x: Float[Array, "*B D"], w: Float[Array, "D F"], dimensions: Any, **_: Any) -> Array:
        """The product, in bfloat16."""
        state = {name: variable[...] for name, variable in self.scaling.items()}
        factors = x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)
        made: Any = fp8_ops.Fp8DirectDotGeneralOp().apply({_COLLECTION: state}, *factors, dimensions)
        product: Array = made
        return product


class TEProduct(nnx.Module):
    """The `dot_general` of a layer by TransformerEngine, with its recipe's state from step to step.

    Args:
        name: of the recipe, in `te_layers.RECIPES`.
    """

    def __init__(self, name: str) -> None:
        self.name, recipe = name, te_layers.RECIPES[name]
        self.scaling = make_scaling(recipe.scaled)
        self.steps = Fp8Scaling(jnp.zeros((1,), jnp.float32)) if recipe.draws else None

    def __call__(self, x: Float[Array, "*B D"], w: Float[Array, "D F"], dimensions: Any, **_: Any) -> Array:
        """The product, in bfloat16."""
        te_layers.check_sizes(self.name, (math.prod(x.shape[:-1]), *w.shape))
        state = {name: variable[...] for name, variable in self.scaling.items()}
        rngs = {}
        if self.steps is not None:
            rngs = {te_layers.DRAWN: jax.random.key(self.steps[...][0].astype(jnp.uint32))}
        factors = x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)
        product = te_layers.make_dot_general(self.name, traced_device())
        result: Array = product.apply({_COLLECTION: state}, *factors, dimensions, rngs=rngs)
        if self.steps is None:
            return result
        return count_step(result, self.steps[...])


@jax.custom_vjp
def count_step(y: Array, steps: Float[Array, "1"]) -> Array:
    """y as it is; the "gradient" of the steps is one more, as the "gradient" of an `Fp8Scaling` is its next value."""
    return y


count_step.defvjp(lambda y, steps: (y, steps), lambda steps, gradient: (gradient, steps + 1))


def make_dot_general(compute: Compute) -> Any:
    """The `dot_general` of a feed-forward layer's matrix: JAX's own, or a module that scales its factors."""
    if compute.products == "plain":
        return jax.lax.dot_general
    recipe = te_layers.find_recipe(compute.products)
    if recipe is None:
        return Fp8Product()
    return TEProduct(recipe)


def make_te_products(compute: Compute, *, grouped: bool = False) -> Any:
    """State of attention's products in a whole block of TransformerEngine: three with grouped heads, else two."""
    recipe = te_layers.find_recipe(compute.products)
    if compute.layers != te_layers.BLOCK or recipe is None:
        return nnx.List([])
    return nnx.List([TEProduct(recipe) for _ in range(2 + grouped)])
