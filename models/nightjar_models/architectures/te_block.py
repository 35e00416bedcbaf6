"""A plain block, or its norm and feed-forward half, computed by one module of TransformerEngine.

In: a stream, and the block's parameters, which stay ours: names, shapes and first values do not depend on who computes.
Out: what `transformer.Block` computes, in bfloat16, with its products by the recipe of `compute.products`. A module
takes the parameters in the shapes of TransformerEngine; biases that we lack are zeros there. What a recipe remembers is
kept by one `TEProduct` for each matrix.

| TransformerEngine's parameter | shape | ours |
|---|---|---|
| `attention/qkv/scale`, `mlp/scale` | D | `attention_norm`, `feed_forward_norm` |
| `attention/qkv/kernel` | D, 3, H K | `qkv` |
| `attention/out/kernel` | H K, D | `projection` |
| `mlp/wi_kernel`, `mlp/wi_bias` | D, 1, F; 1, F | `w_in`, `b_in` |
| `mlp/wo_kernel`, `mlp/wo_bias` | F, D; D | `w_out`, `b_out` |
| `ln_bias`, `attention/qkv/bias`, `attention/out/bias` | | zeros |

Dimensions: B batch, T positions, D model width, H heads, K width of a head, F feed-forward width.

Source: NVIDIA TransformerEngine 2.20, transformer_engine/jax/flax/module.py, flax/transformer.py and layernorm_mlp.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nightjar_models.architectures import te_layers
from nightjar_models.architectures.layers import EPSILON
from nightjar_models.architectures.precision import TEProduct, count_step
from nightjar_models.kernels.fused_attention import CUDNN, describe_call, fall_back, find_refusals
from nightjar_models.parallel.sharding import active_mesh, traced_device

PRODUCTS = 4  # of a whole block: into and out of the feed-forward layer, then queries, keys and values, then projection
_OF_ATTENTION = (("qkv", 2), ("out", 3))
_FACTORS = ("x", "kernel", "grad")
Tree = dict[str, Any]


def feed_forward(
    x: Float[Array, "B T D"],
    norm: Float[Array, " D"],
    w_in: Float[Array, "D F"],
    b_in: Float[Array, " F"],
    w_out: Float[Array, "F D"],
    b_out: Float[Array, " D"],
    *,
    products: Sequence[Any],
) -> Float[Array, "B T D"]:
    """A layer norm and the feed-forward layer behind it, by `LayerNormMLP`.

    Args:
        x: activations.
        norm: scale of the layer norm.
        w_in: of the first map.
        b_in: of the first map.
        w_out: of the second map.
        b_out: of the second map.
        products: of the two matrices, as `make_products` gives them.
    """
    layer = te_layers.make_feed_forward(w_in.shape[1], epsilon=EPSILON)
    parameters = feed_forward_parameters(norm, w_in, b_in, w_out, b_out)
    return _apply(layer, parameters, _feed_forward_scaling(products), x, w_in.shape, products)


def block(
    x: Float[Array, "B T D"],
    attention: tuple[Array, Array, Array],
    behind: tuple[Array, Array, Array, Array, Array],
    *,
    causal: bool,
    how: str,
    products: Sequence[Any],
) -> Float[Array, "B T D"]:
    """A whole block, what it adds to included, by `TransformerLayer`.

    Args:
        x: the stream.
        attention: scale of its layer norm, the matrices of queries, keys and values, and of the projection.
        behind: as the parameters of `feed_forward`.
        causal: no position sees a later one.
        how: attention by TransformerEngine's `einsum`, or by `cudnn` where that is possible.
        products: of the matrices, in the order of `PRODUCTS`.
    """
    width, hidden = behind[1].shape
    heads, head_width = attention[1].shape[2:]
    if how == CUDNN:
        shape = x.shape[0], heads, x.shape[1], head_width
        queries = jax.ShapeDtypeStruct(shape, te_layers.DTYPE)  # type: ignore[no-untyped-call]
        request = describe_call(queries, queries, biased=False, split=False, mesh=active_mesh())
        how = fall_back(how, find_refusals(request) or te_layers.find_attention_refusals())
    layer = te_layers.make_block(width, hidden, heads, causal=causal, epsilon=EPSILON)
    parameters = {"attention": attention_parameters(*attention), "mlp": feed_forward_parameters(*behind)}
    scaling = {
        "attention": {name: _scaling(dict.fromkeys(_FACTORS, products[number])) for name, number in _OF_ATTENTION},
        "mlp": _feed_forward_scaling(products),
    }
    with te_layers.attend_by(fused=how == CUDNN):
        return _apply(layer, parameters, scaling, x, (width, hidden), products)


def feed_forward_parameters(norm: Array, w_in: Array, b_in: Array, w_out: Array, b_out: Array) -> Tree:
    """The parameters of a `LayerNormMLP`; its second dimension counts activations, of which there is one."""
    return {
        "scale": norm,
        "ln_bias": jnp.zeros_like(norm),
        "wi_kernel": w_in[:, None, :],
        "wi_bias": b_in[None, :],
        "wo_kernel": w_out,
        "wo_bias": b_out,
    }


def attention_parameters(norm: Array, qkv: Float[Array, "D 3 H K"], projection: Float[Array, "H K D"]) -> Tree:
    """The parameters of the attention within a `TransformerLayer`, which sees the heads side by side."""
    zeros = jnp.zeros_like(norm)
    joined = qkv.reshape(*qkv.shape[:2], -1)
    into = {"scale": norm, "ln_bias": zeros, "kernel": joined, "bias": jnp.zeros_like(joined[0])}
    return {"qkv": into, "out": {"kernel": projection.reshape(-1, norm.size), "bias": zeros}}


def _feed_forward_scaling(products: Sequence[Any]) -> Tree:
    """Scales and histories by the names of `LayerNormMLP`.

    Its backward pass rounds the gradient of the second product's result with the quantizer of the first, and the other
    way round (`_layernorm_mlp_bwd_rule`): here each stays with its product.
    """
    into, out = products[:2]
    return _scaling({"x": into, "kernel": into, "grad": out}, "_0") | _scaling(
        {"x": out, "kernel": out, "grad": into}, "_1"
    )


def _scaling(products: Mapping[str, Any], suffix: str = "") -> Tree:
    """Scale and history of each factor, from the product that remembers them; none where a recipe has none."""
    return {
        f"{factor}{suffix}_{kind}": product.scaling[f"{factor}_{kind}"][...]
        for factor, product in products.items()
        if isinstance(product, TEProduct) and factor in te_layers.RECIPES[product.name].scaled
        for kind in ("scale", "amax_history")
    }


def _apply(
    layer: Any, parameters: Tree, scaling: Tree, x: Array, sides: tuple[int, ...], products: Sequence[Any]
) -> Float[Array, "B T D"]:
    """What a module of TransformerEngine gives for x, in the type of x.

    Raises:
        InputError: the recipe cannot scale these sizes.
    """
    scaled = [product for product in products if isinstance(product, TEProduct)]
    recipe = scaled[0].name if scaled else None
    if recipe is not None:
        te_layers.check_sizes(recipe, (x.shape[0] * x.shape[1], *sides))
    rounded = jax.tree.map(lambda one: one.astype(te_layers.DTYPE), parameters)
    variables = {"params": rounded, te_layers.REMEMBERED: scaling}
    counts = [product.steps[...] for product in scaled if product.steps is not None]
    rngs = {te_layers.DRAWN: jax.random.key(counts[0][0].astype(jnp.uint32))} if counts else {}
    with te_layers.multiply_by(recipe, traced_device()):
        found = layer.apply(variables, x.astype(te_layers.DTYPE), rngs=rngs)
    out: Array = (found[0] if isinstance(found, tuple) else found).astype(x.dtype)
    for count in counts:
        out = count_step(out, count)
    return out
