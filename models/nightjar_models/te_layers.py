"""How does TransformerEngine multiply in a workload, and how are its fused layers made? By a recipe's name.

In: the name of a recipe, and the device that is traced for. Out: a matrix product for `compute.products=te_RECIPE`, or
a Flax (Linen) module of TransformerEngine and a context in which it multiplies by that recipe; without the library, or
on a device that cannot compute a recipe, an error that helps.

| recipe | factors | scale of | GPU from | a multiple of |
|---|---|---|---|---|
| `delayed` | FP8 | a tensor, from the largest values of the last steps | 8.9 (Ada) | 16 |
| `mxfp8` | FP8 | 32 numbers | 10.0 (Blackwell) | 32 |
| `nvfp4` | FP4 | 16 numbers, and a tensor | 10.0 (Blackwell) | 128 |

The last column is what rows and both sides of a matrix must be. Gradients that go backwards are rounded to FP4 by
chance, each step with other random numbers. The library asks its first GPU how new it is even while it is traced; for a
GPU that is not there (`nightjar-models compile`) it is told (`_answer`).

Source: NVIDIA TransformerEngine 2.20, transformer_engine/common/recipe/__init__.py and transformer_engine/jax.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from nightjar_models.errors import InputError, ToolError, did_you_mean

SWITCH = "te_"  # before a recipe, in `compute.products`


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A way to scale factors.

    Attributes:
        name: of TransformerEngine's class.
        needs: the compute capability from which GPUs have such products.
        multiple: of what rows and both sides of a matrix are.
        scaled: factors with a scale and a history, by TransformerEngine's names.
        draws: rounds by chance.
    """

    name: str
    needs: tuple[int, int]
    multiple: int
    scaled: tuple[str, ...] = ()
    draws: bool = False


RECIPES = {
    "delayed": Recipe(name="DelayedScaling", needs=(8, 9), multiple=16, scaled=("x", "kernel", "grad")),
    "mxfp8": Recipe(name="MXFP8BlockScaling", needs=(10, 0), multiple=32),
    "nvfp4": Recipe(name="NVFP4BlockScaling", needs=(10, 0), multiple=128, draws=True),
}


def find_recipe(products: str) -> str | None:
    """The recipe that a setting of `compute.products` names; None where it is not one of TransformerEngine.

    >>> find_recipe("te_mxfp8"), find_recipe("fp8")
    ('mxfp8', None)
    """
    return products.removeprefix(SWITCH) if products.startswith(SWITCH) else None


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
    needs = RECIPES[name].needs
    least = ".".join(map(str, needs))
    hint = "compute.products=fp8, of Flax (nightjar_models.precision), runs everywhere"
    if capability is None:
        raise ToolError(f"recipe {name}: expected an NVIDIA GPU of compute capability {least}, found none.", hint)
    if capability < needs:
        found = ".".join(map(str, capability))
        raise ToolError(f"recipe {name}: expected compute capability {least} or newer, found {found}.", hint)


def check_sizes(name: str, sizes: Sequence[int]) -> None:
    """Refuses a product that a recipe cannot scale.

    Args:
        name: a key of `RECIPES`.
        sizes: rows, and both sides of the matrix.

    Raises:
        InputError: it cannot.
    """
    multiple = RECIPES[name].multiple
    if any(size % multiple for size in sizes):
        raise InputError(
            f"compute.products={SWITCH}{name}: {' x '.join(map(str, sizes))}, expected multiples of {multiple}.",
            "change batch_size, model.width or model.feed_forward with --set",
        )


def check_library(name: str, device: Any) -> None:
    """Refuses a recipe on a device that cannot compute it, or without the library.

    Args:
        name: a key of `RECIPES`.
        device: of this machine, or one that is only compiled for.

    Raises:
        InputError: no such recipe.
        ToolError: no GPU, one too old for it, or no library.
    """
    capability = find_capability(device)
    check_recipe(name, capability)
    _load(capability)


def find_capability(device: Any) -> tuple[int, int] | None:
    """The compute capability of a device; None of one that is no GPU."""
    if device.platform != "gpu":
        return None
    major, minor = str(device.compute_capability).split(".")
    return int(major), int(minor)


def make_dot_general(name: str, device: Any) -> Any:
    """A Flax (Linen) module with the arguments of `jax.lax.dot_general`; what it remembers is in its variables.

    Args:
        name: a key of `RECIPES`.
        device: that it is traced for.
    """
    library = _load(find_capability(device))
    return library.flax.make_dot_general_cls(_make_recipe(name))()


def use_recipe(name: str) -> contextlib.AbstractContextManager[Any]:
    """A context in which TransformerEngine's layers multiply by this recipe.

    Raises:
        InputError: no such recipe.
        ToolError: the library is not installed, or the GPU cannot compute it.
    """
    check_library(name, jax.local_devices()[0])
    library = _import("transformer_engine.jax")
    context: contextlib.AbstractContextManager[Any] = library.autocast(
        enabled=True, recipe=_make_recipe(name), mesh_resource=library.MeshResource()
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


def _make_recipe(name: str) -> Any:
    return getattr(_import("transformer_engine.common.recipe"), RECIPES[name].name)()


def _load(capability: tuple[int, int] | None) -> Any:
    """The library; where the GPU that is traced for is not there, it is told how new that is."""
    library = _import("transformer_engine.jax")
    if capability is not None and jax.default_backend() != "gpu":
        _answer(10 * capability[0] + capability[1])
    return library


@functools.lru_cache(maxsize=1)
def _answer(architecture: int) -> None:
    """Lets the library have this answer where it asks its GPU; for good, as it asks while XLA compiles, too."""
    for name in ("transformer_engine_jax", "transformer_engine.jax.cpp_extensions.gemm"):
        vars(_import(name))["get_device_compute_capability"] = lambda gpu_id: architecture
    asked = _import("transformer_engine.jax.quantize.device_utils")
    for known in (asked.get_device_compute_capability, asked.is_fp8_gemm_with_all_layouts_supported):
        known.cache_clear()


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError, AssertionError) as error:  # CUDA's libraries, or versions that differ
        raise ToolError(
            f"{name}: cannot be imported: {error}.",
            "pip install 'nightjar-models[te]' beside jax[cuda12], or use the image nightjar/te",
        ) from error
