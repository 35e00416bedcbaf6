"""Matrix products and fused layers by TransformerEngine, by the name of a recipe.

In: the name of a recipe, and the device that is traced for. Out: a matrix product for `compute.products=te_RECIPE`, or
a Flax (Linen) module of TransformerEngine and a context in which it multiplies by that recipe; without the library, or
on a device that cannot compute a recipe, an error that helps.

| recipe | factors | scale of | GPU from | a multiple of |
|---|---|---|---|---|
| `delayed` | FP8 | a tensor, from the largest values of the last steps | 8.9 (Ada) | 16 |
| `mxfp8` | FP8 | 32 numbers | 10.0 (Blackwell) | 32 |
| `nvfp4` | FP4 | 16 numbers, and a tensor | 10.0 (Blackwell) | 128 |

The last column is the multiple that rows and both sides of a matrix must be. Gradients are rounded to FP4
stochastically, each step with other random numbers. The library asks its first GPU how new it is and how much scratch
memory a kernel takes even while it is traced; for an absent GPU (`nightjar-models compile`) it is told (`_answer`).

Source: NVIDIA TransformerEngine 2.20, transformer_engine/common/recipe/__init__.py and transformer_engine/jax.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen

from nightjar_models.errors import InputError, ToolError, did_you_mean
from nightjar_models.parallel.sharding import BATCH, active_mesh

SWITCH = "te_"  # before a recipe, in `compute.products`
FEED_FORWARD, BLOCK = "te_feed_forward", "te_block"  # of `compute.layers`
DTYPE = jnp.bfloat16  # of the layers' arithmetic
REMEMBERED, DRAWN = "fp8_metas", "sr_rng"  # its collection of scales and histories, and its stream of random numbers
UNSCALED = (8, 0)  # the compute capability from which GPUs multiply bfloat16
# It asks how much scratch memory these take. Without a GPU it is told of two rows a multiprocessor: a norm's
# gradients of scale and bias have that many partial sums, if one block at a time runs on each.
_SCRATCH = (
    "get_norm_fwd_workspace_sizes",
    "get_norm_bwd_workspace_sizes",
    "get_dbias_quantize_workspace_sizes",
    "get_dact_dbias_quantize_workspace_sizes",
)
_FUSED = "NVTE_FUSED_ATTN"  # its environment variable
_FORMS = {False: ("layernorm", ("gelu",)), True: ("rmsnorm", ("silu", "linear"))}  # by whether there is a gate
# Its names of our mesh's axes, and the axes over which its layers split a stream. Without rules they split a batch over
# `dp_resource` or `fsdp_resource`, never over both (jax/sharding.py): dp2.fsdp2 would gather half of it.
_RESOURCES = {"dp_resource": "data", "fsdp_resource": "fsdp", "tp_resource": "tensor"}
_RULES: tuple[tuple[str, str | tuple[str, ...]], ...] = (
    ("nvte_batch", BATCH),
    ("nvte_head", "tensor"),
    ("nvte_hidden_tp", "tensor"),
)
SPLITS = frozenset(_RESOURCES.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A way to scale factors.

    Attributes:
        name: of TransformerEngine's class.
        needs: the compute capability from which GPUs have such products.
        multiple: factor of rows and both sides of a matrix.
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
    """The recipe that a setting of `compute.products` names; None if it is not one of TransformerEngine.

    >>> find_recipe("te_mxfp8"), find_recipe("fp8")
    ('mxfp8', None)
    """
    if products.startswith(SWITCH):
        return products.removeprefix(SWITCH)
    return None


def check_recipe(name: str | None, capability: tuple[int, int] | None) -> None:
    """Refuses recipes that this GPU cannot compute.

    Args:
        name: a key of `RECIPES`; None for layers whose products are in bfloat16.
        capability: of the GPU, such as (9, 0); None if there is none.
    """
    if name is not None and name not in RECIPES:
        hint = did_you_mean(name, RECIPES)
        raise InputError(f"unknown recipe {name!r}: expected one of {', '.join(RECIPES)}.", hint)
    needs = UNSCALED if name is None else RECIPES[name].needs
    what = "TransformerEngine's layers"
    if name is not None:
        what = f"recipe {name}"
    hint = "compute.products=fp8, of Flax (nightjar_models.architectures.precision), runs everywhere"
    if name is None:
        hint = "compute.layers=plain runs everywhere"
    least = ".".join(map(str, needs))
    if capability is None:
        raise ToolError(f"{what}: expected an NVIDIA GPU of compute capability {least}, found none.", hint)
    if capability < needs:
        found = ".".join(map(str, capability))
        raise ToolError(f"{what}: expected compute capability {least} or newer, found {found}.", hint)


def check_sizes(name: str, sizes: Sequence[int]) -> None:
    """Refuses a product that a recipe cannot scale.

    Args:
        sizes: rows, of which each device of the active mesh takes its part, and both sides of the matrix.
    """
    multiple, mesh = RECIPES[name].multiple, active_mesh()
    if mesh is not None:
        sizes = sizes[0] // math.prod(mesh.shape[axis] for axis in BATCH), *sizes[1:]
    if any(size % multiple for size in sizes):
        raise InputError(
            f"compute.products={SWITCH}{name}: {' x '.join(map(str, sizes))}, expected multiples of {multiple}.",
            "change batch_size, model.width or model.feed_forward with --set",
        )


def check_library(name: str | None, device: Any) -> None:
    """Refuses a recipe or layers on a device that cannot compute them, or without the library.

    Args:
        name: of the recipe; None for layers whose products are in bfloat16.
        device: of this machine, or one that is only compiled for.
    """
    check_recipe(name, find_capability(device))
    _load(device)


def find_capability(device: Any) -> tuple[int, int] | None:
    """The compute capability of a device; None if it is not a GPU."""
    if device.platform != "gpu":
        return None
    major, minor = str(device.compute_capability).split(".")
    return int(major), int(minor)


def make_dot_general(name: str, device: Any) -> Any:
    """A Flax (Linen) module with the arguments of `jax.lax.dot_general`; its state is in its variables.

    Args:
        device: that it is traced for.
    """
    library = _load(device)
    return library.flax.make_dot_general_cls(_make_recipe(name))()


def make_feed_forward(hidden: int, *, epsilon: float, gated: bool) -> Any:
    """A Flax (Linen) module: a norm, then two matrices with an activation between them (`LayerNormMLP`).

    Args:
        gated: SwiGLU behind RMSNorm, without biases; otherwise GELU (tanh form) behind a layer norm.
    """
    norm, activations = _FORMS[gated]
    return _import("transformer_engine.jax.flax").LayerNormMLP(
        intermediate_dim=hidden,
        layernorm_type=norm,
        epsilon=epsilon,
        activations=activations,
        use_bias=not gated,
        return_layernorm_output=False,
    )


def make_block(
    width: int, hidden: int, heads: int, groups: int, *, causal: bool, epsilon: float, rope_base: float | None
) -> Any:
    """A Flax (Linen) module: attention, then a feed-forward layer, each added to its input (`TransformerLayer`).

    Args:
        hidden: width between the two matrices of the feed-forward layer.
        groups: heads of keys and values.
        rope_base: of rotary positions, in a block like Llama's; None for one like GPT's.
    """
    library = _import("transformer_engine.jax.flax")
    gated = rope_base is not None
    norm, activations = _FORMS[gated]
    return library.TransformerLayer(
        hidden_size=width,
        mlp_hidden_size=hidden,
        num_attention_heads=heads,
        num_gqa_groups=groups,
        layer_type=library.TransformerLayerType.ENCODER,
        self_attn_mask_type="causal" if causal else "no_mask",
        scale_attn_logits=True,
        layernorm_type=norm,
        layernorm_epsilon=epsilon,
        mlp_activations=activations,
        use_bias=not gated,
        enable_relative_embedding=False,
        enable_rotary_pos_emb=gated,
        rotary_pos_emb_windows=(1, rope_base),
        rotary_pos_emb_group_method="alternate",  # the pair (n, n + K/2) of a head, as `layers.rotate`
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )


@contextlib.contextmanager
def multiply_by(name: str | None, device: Any) -> Iterator[None]:
    """Within it the layers of TransformerEngine multiply by this recipe."""
    library = _load(device)
    recipe = None if name is None else _make_recipe(name)
    scaled = library.autocast(enabled=name is not None, recipe=recipe, mesh_resource=library.MeshResource(**_RESOURCES))
    with scaled, linen.logical_axis_rules(_RULES):
        yield


@contextlib.contextmanager
def attend_by(*, fused: bool) -> Iterator[None]:
    """Within it a layer's attention is cuDNN's, or products with a softmax between them, as its variable says."""
    before = os.environ.get(_FUSED)
    os.environ[_FUSED] = str(int(fused))
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FUSED]
        else:
            os.environ[_FUSED] = before


def find_attention_refusals() -> list[str]:
    """Why a layer's attention cannot be cuDNN's although cuDNN could; empty if it can."""
    if jax.default_backend() == "gpu":
        return []
    return ["TransformerEngine asks cuDNN on the GPU itself, of which this process has none"]


def _make_recipe(name: str) -> Any:
    return getattr(_import("transformer_engine.common.recipe"), RECIPES[name].name)()


def _load(device: Any) -> Any:
    """The library; it is told the target GPU if that is absent."""
    library = _import("transformer_engine.jax")
    _name_axes()
    capability = find_capability(device)
    if capability is not None and jax.default_backend() != "gpu":
        _answer(10 * capability[0] + capability[1], device.core_count)
    return library


@functools.lru_cache(maxsize=1)
def _name_axes() -> Any:
    """Tells the library for good how our meshes split, as it asks while XLA compiles: the context that says so."""
    sharding = _import("transformer_engine.jax.sharding")
    context = sharding.global_shard_guard(sharding.MeshResource(**_RESOURCES))
    context.__enter__()
    return context


@functools.lru_cache(maxsize=1)
def _answer(architecture: int, multiprocessors: int) -> None:
    """Gives the library this answer when it asks its GPU; for good, as it asks while XLA compiles, too."""
    extension = _import("transformer_engine_jax")
    for module in (extension, _import("transformer_engine.jax.cpp_extensions.gemm")):
        vars(module)["get_device_compute_capability"] = lambda gpu_id: architecture
    for name in _SCRATCH:
        vars(extension)[name] = lambda rows, width, *others: (
            ((2 * multiprocessors * width,), extension.DType.kFloat32),
        )
    unfused = extension.NVTE_Fused_Attn_Backend.NVTE_No_Backend, "there is no GPU to ask"
    vars(extension)["get_fused_attn_backend"] = lambda params: unfused
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
