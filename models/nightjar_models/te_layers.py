"""How are TransformerEngine's fused layers switched on? By a recipe's name; without the library by an error that helps.

In: the name of a recipe and the sizes of a layer. Out: a Flax (Linen) module of TransformerEngine, and a context in
which it multiplies by that recipe. Its layers cannot even be traced without an NVIDIA GPU.

| recipe | factors | scale of | GPU from |
|---|---|---|---|
| `delayed` | FP8 | a tensor, from the largest values of the last steps | 8.9 (Ada) |
| `mxfp8` | FP8 | 32 numbers | 10.0 (Blackwell) |
| `nvfp4` | FP4 | 16 numbers, and a tensor | 10.0 (Blackwell) |

Source: NVIDIA TransformerEngine 2.20, transformer_engine/common/recipe/__init__.py and transformer_engine/jax.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

from nightjar_models.errors import InputError, ToolError, did_you_mean

RECIPES = {"delayed": "DelayedScaling", "mxfp8": "MXFP8BlockScaling", "nvfp4": "NVFP4BlockScaling"}
NEEDS = {"delayed": (8, 9), "mxfp8": (10, 0), "nvfp4": (10, 0)}


def check_recipe(name: str, capability: tuple[int, int] | None) -> None:
    """Refuses what this GPU cannot compute.

    Args:
        name: a key of `RECIPES`.
        capability: of the GPU, such as (9, 0); None where there is none.

    Raises:
        InputError: no such recipe.
        ToolError: no GPU, or one too old for it.
    """
    if name not in RECIPES:
        hint = did_you_mean(name, RECIPES)
        raise InputError(f"unknown recipe {name!r}: expected one of {', '.join(RECIPES)}.", hint)
    least = ".".join(map(str, NEEDS[name]))
    hint = "nightjar_models.precision has FP8 layers that run everywhere"
    if capability is None:
        raise ToolError(f"recipe {name}: expected an NVIDIA GPU of compute capability {least}, found none.", hint)
    if capability < NEEDS[name]:
        found = ".".join(map(str, capability))
        raise ToolError(f"recipe {name}: expected compute capability {least} or newer, found {found}.", hint)


def find_capability() -> tuple[int, int] | None:
    """The compute capability of this process's first GPU; None where there is none."""
    import jax

    device = jax.local_devices()[0]
    if device.platform != "gpu":
        return None
    major, minor = str(device.compute_capability).split(".")
    return int(major), int(minor)


def use_recipe(name: str) -> contextlib.AbstractContextManager[Any]:
    """A context in which TransformerEngine's layers multiply by this recipe.

    Raises:
        InputError: no such recipe.
        ToolError: the library is not installed, or the GPU cannot compute it.
    """
    check_recipe(name, find_capability())
    recipe = getattr(_import("transformer_engine.common.recipe"), RECIPES[name])()
    library = _import("transformer_engine.jax")
    context: contextlib.AbstractContextManager[Any] = library.autocast(
        enabled=True, recipe=recipe, mesh_resource=library.MeshResource()
    )
    return context


def feed_forward(hidden: int) -> Any:
    """A layer norm and a two-layer feed-forward network in one module (`LayerNormMLP`).

    Args:
        hidden: width between the two matrices.
    """
    return _import("transformer_engine.jax.flax").LayerNormMLP(intermediate_dim=hidden, return_layernorm_output=False)


def transformer_layer(width: int, hidden: int, heads: int) -> Any:
    """A whole causal layer (`TransformerLayer`), with attention by cuDNN.

    Args:
        width: of the stream.
        hidden: width between the two matrices of the feed-forward network.
        heads: of attention.
    """
    library = _import("transformer_engine.jax.flax")
    return library.TransformerLayer(
        hidden_size=width,
        mlp_hidden_size=hidden,
        num_attention_heads=heads,
        layer_type=library.TransformerLayerType.ENCODER,
        self_attn_mask_type="causal",
        enable_relative_embedding=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        transpose_batch_sequence=False,
    )


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError) as error:  # its libraries may lack CUDA's
        raise ToolError(
            f"{name}: cannot be imported: {error}.",
            "pip install 'nightjar-models[te]' beside jax[cuda12], or use the image nightjar/te",
        ) from error
