"""A block of GPT, ViT or Llama, or its norm and feed-forward half, computed by one module of TransformerEngine.

In: a block and its stream. Out: the result of the block, in bfloat16, with its products by the recipe of
`compute.products`. The parameters stay the block's: names, shapes and first values do not depend on who computes. A
module takes them in the shapes of TransformerEngine. A recipe's state is kept by one `TEProduct` for each matrix: the
feed-forward layer's in its layers, attention's in `te_products`.

| TransformerEngine's parameter | shape | ours |
|---|---|---|
| `attention/qkv/scale`, `ln_bias`; `mlp/scale`, `ln_bias` | D | `attention_norm`, `feed_forward_norm` |
| `attention/qkv/kernel`, `bias` | D, 3, H K; 3, H K | `attention.query`, `key` and `value` |
| with grouped heads: `attention/query/scale`, `kernel` | D; D, H K | `attention_norm`, `attention.query` |
| with grouped heads: `attention/kv/kernel` | D, 2, G K | `attention.key` and `value` |
| `attention/out/kernel`, `bias` | H K, D; D | `attention.out` |
| `mlp/wi_kernel`, `mlp/wi_bias` | D, A, F; A, F | `feed_forward.gate` if there is one, `linear_in` |
| `mlp/wo_kernel`, `mlp/wo_bias` | F, D; D | `feed_forward.linear_out` |

Dimensions: B batch, T positions, D model width, H heads, G heads of keys and values, K width of a head, F feed-forward
width, A matrices into it.

Source: NVIDIA TransformerEngine 2.20, transformer_engine/jax/flax/module.py, flax/transformer.py and layernorm_mlp.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from nightjar_models.architectures import te_layers
from nightjar_models.architectures.precision import TEProduct, count_step
from nightjar_models.kernels.fused_attention import CUDNN, describe_call, fall_back, find_refusals
from nightjar_models.parallel.sharding import active_mesh, traced_device

_FACTORS = ("x", "kernel", "grad")
Tree = dict[str, Any]


def feed_forward(block: Any, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """The norm and the feed-forward layer of a block, by `LayerNormMLP`."""
    inner = block.feed_forward.linear_in
    layer = te_layers.make_feed_forward(
        inner.out_features, epsilon=block.feed_forward_norm.epsilon, gated=hasattr(block.feed_forward, "gate")
    )
    products = _list_products(block)
    scaling = _feed_forward_scaling(products)
    return _apply(layer, feed_forward_parameters(block), scaling, x, inner.kernel.shape, products)


def whole(block: Any, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """A whole block, residual included, by `TransformerLayer`; attention by cuDNN if that is possible."""
    width, hidden = block.feed_forward.linear_in.kernel.shape
    heads, head_width = block.attention.query.out_features
    how = block.how
    if how == CUDNN:
        shape = x.shape[0], x.shape[1], heads, head_width
        queries = jax.ShapeDtypeStruct(shape, te_layers.DTYPE)  # type: ignore[no-untyped-call]
        request = describe_call(queries, queries, biased=False, split=False, mesh=active_mesh())
        how = fall_back(how, find_refusals(request) or te_layers.find_attention_refusals())
    layer = te_layers.make_block(
        *(width, hidden, heads, block.attention.key.out_features[0]),
        causal=block.causal,
        epsilon=block.attention_norm.epsilon,
        rope_base=block.rope_base,
    )
    parameters = {"attention": attention_parameters(block), "mlp": feed_forward_parameters(block)}
    products = _list_products(block)
    scaling = {
        "attention": {
            name: _scaling(dict.fromkeys(_FACTORS, product))
            for name, product in zip(parameters["attention"], products[2:], strict=False)
        },
        "mlp": _feed_forward_scaling(products),
    }
    with te_layers.attend_by(fused=how == CUDNN):
        return _apply(layer, parameters, scaling, x, (width, hidden), products)


def feed_forward_parameters(block: Any) -> Tree:
    """The parameters of a `LayerNormMLP`, whose first matrices are one."""
    layers = block.feed_forward
    into = [layers.gate, layers.linear_in] if hasattr(layers, "gate") else [layers.linear_in]
    parameters = {
        **_norm_parameters(block.feed_forward_norm),
        "wi_kernel": jnp.stack([layer.kernel[...] for layer in into], axis=1),
        "wo_kernel": layers.linear_out.kernel[...],
    }
    if layers.linear_out.bias is not None:
        parameters["wi_bias"] = jnp.stack([layer.bias[...] for layer in into])
        parameters["wo_bias"] = layers.linear_out.bias[...]
    return parameters


def _norm_parameters(norm: Any) -> Tree:
    """The parameters of a layer norm, or of RMSNorm, which has no bias."""
    parameters = {"scale": norm.scale[...]}
    if getattr(norm, "bias", None) is not None:
        parameters["ln_bias"] = norm.bias[...]
    return parameters


def attention_parameters(block: Any) -> Tree:
    """The parameters of the attention within a `TransformerLayer`, which sees the heads side by side."""
    attention, norm = block.attention, _norm_parameters(block.attention_norm)
    out, width = attention.out, norm["scale"].shape[0]
    parts = attention.query, attention.key, attention.value
    kernels = [part.kernel[...].reshape(width, -1) for part in parts]
    last = {"kernel": out.kernel[...].reshape(-1, width)}
    if kernels[0].shape != kernels[1].shape:
        return {"query": {**norm, "kernel": kernels[0]}, "kv": {"kernel": jnp.stack(kernels[1:], axis=1)}, "out": last}
    first = {**norm, "kernel": jnp.stack(kernels, axis=1)}
    if out.bias is not None:
        first["bias"] = jnp.stack([part.bias[...].reshape(-1) for part in parts])
        last["bias"] = out.bias[...]
    return {"qkv": first, "out": last}


def _list_products(block: Any) -> list[Any]:
    """Stateful products: into and out of the feed-forward layer, then attention's in the order of its parameters."""
    layers = block.feed_forward.linear_in, block.feed_forward.linear_out
    return [*(layer.dot_general for layer in layers), *block.te_products]


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
    """Scale and history of each factor, from the product that remembers them; none if a recipe has none."""
    return {
        f"{factor}{suffix}_{kind}": product.scaling[f"{factor}_{kind}"][...]
        for factor, product in products.items()
        if isinstance(product, TEProduct) and factor in te_layers.RECIPES[product.name].scaled
        for kind in ("scale", "amax_history")
    }


def _apply(
    layer: Any, parameters: Tree, scaling: Tree, x: Array, sides: tuple[int, ...], products: Sequence[Any]
) -> Float[Array, "B T D"]:
    """The output of a module of TransformerEngine for x, in the type of x."""
    scaled = [product for product in products if isinstance(product, TEProduct)]
    recipe = scaled[0].name if scaled else None
    if recipe is not None:
        te_layers.check_sizes(recipe, (x.shape[0] * x.shape[1], *sides))
    rounded = jax.tree.map(lambda value: value.astype(te_layers.DTYPE), parameters)
    variables = {"params": rounded, te_layers.REMEMBERED: scaling}
    counts = [product.steps[...] for product in scaled if product.steps is not None]
    rngs = {te_layers.DRAWN: jax.random.key(counts[0][0].astype(jnp.uint32))} if counts else {}
    with te_layers.multiply_by(recipe, traced_device()):
        found = layer.apply(variables, x.astype(te_layers.DTYPE), rngs=rngs)
    out: Array = (found[0] if isinstance(found, tuple) else found).astype(x.dtype)
    for count in counts:
        out = count_step(out, count)
    return out
