"""Fused RMSNorm in C++ and CUDA, through XLA's foreign function interface.

In: activations [..., D] and a scale [D], both float32 or both bfloat16, on the CPU or an NVIDIA GPU. Out: the
activations with unit mean square, times the scale. With gradient (`custom_vjp`), batching (`custom_vmap`) and
partitioning (`custom_partitioning`): rows may be split over any mesh axes and each device normalises its own, without a
collective; a split width is gathered. `compute.norm` chooses among this one, Pallas and Flax.

Dimensions: D width; everything before it is rows.

Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization"; docs.jax.dev, "Foreign function interface".
"""

from __future__ import annotations

import functools
import string
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from nightjar_models.kernels.build import load

EPSILON = 1e-5
_FORWARD, _BACKWARD = "nightjar_rms_norm_forward", "nightjar_rms_norm_backward"


@functools.cache
def register(platform: str) -> None:
    """Makes the compiled kernels known to XLA."""
    library = load("rms_norm", platform)
    for target, symbol in ((_FORWARD, "RmsNormForward"), (_BACKWARD, "RmsNormBackward")):
        function = jax.ffi.pycapsule(getattr(library, symbol))  # type: ignore[no-untyped-call]
        jax.ffi.register_ffi_target(target, function, platform={"cpu": "cpu", "cuda": "CUDA"}[platform])


@jax.custom_vjp
def rms_norm(x: Float[Array, "*B D"], scale: Float[Array, " D"]) -> Float[Array, "*B D"]:
    """Unit mean square over the width, then a learned scale.

    Args:
        x: float32 or bfloat16.
    """
    return _normalize(x, scale)[0]


def _normalize(x: Array, scale: Array) -> tuple[Array, Array]:
    register("cpu" if jax.default_backend() == "cpu" else "cuda")
    outputs: tuple[Array, Array] = _forward(x, scale)
    return outputs


def _rms_norm_forward(x: Array, scale: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    y, inverse = _normalize(x, scale)
    return y, (x, scale, inverse)


def _rms_norm_backward(kept: tuple[Array, Array, Array], dy: Array) -> tuple[Array, Array]:
    x, scale, inverse = kept
    dx = _backward(x, scale, inverse, dy)
    products = dy.astype(jnp.float32) * x.astype(jnp.float32) * inverse[..., None]
    return dx, products.sum(axis=tuple(range(x.ndim - 1))).astype(scale.dtype)  # a reshape would gather split rows


rms_norm.defvjp(_rms_norm_forward, _rms_norm_backward)


def _call_forward(x: Array, scale: Array) -> Any:
    results = (jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct(x.shape[:-1], jnp.float32))  # type: ignore[no-untyped-call]
    return jax.ffi.ffi_call(_FORWARD, results)(x, scale, epsilon=np.float32(EPSILON))


def _call_backward(x: Array, scale: Array, inverse: Array, dy: Array) -> Any:
    return jax.ffi.ffi_call(_BACKWARD, jax.ShapeDtypeStruct(x.shape, x.dtype))(x, scale, inverse, dy)  # type: ignore[no-untyped-call]


# Of each argument and result: whether it has rows, and whether it has the width.
_ROWS_AND_WIDTH, _ROWS, _WIDTH = (True, True), (True, False), (False, True)


def _by_rows(call: Callable[..., Any], takes: tuple[Any, ...], gives: tuple[Any, ...]) -> Callable[..., Any]:
    """The operation, which each device runs on its own rows.

    Args:
        call: the operation on one device.
        takes: rows and width of each argument (above); the first one has both.
    """

    def lay_out(mesh: Any, rows: tuple[Any, ...], parts: tuple[Any, ...]) -> tuple[NamedSharding, ...]:
        specs = [(*(rows if has_rows else ()), *((None,) if has_width else ())) for has_rows, has_width in parts]
        return tuple(NamedSharding(mesh, PartitionSpec(*spec)) for spec in specs)  # type: ignore[no-untyped-call]

    def partition(mesh: Any, arguments: Any, results: Any) -> Any:
        del results
        spec = arguments[0].sharding.spec
        rows = (*spec, *(None,) * (len(arguments[0].shape) - len(spec)))[:-1]
        outputs = lay_out(mesh, rows, gives)
        return mesh, call, outputs if len(outputs) > 1 else outputs[0], lay_out(mesh, rows, takes)

    @functools.cache
    def of_rank(rank: int) -> Callable[..., Any]:
        """Shardy's rule names the dimensions, so each number of them has its own."""
        names = " ".join(string.ascii_lowercase[:rank])

        def name(part: tuple[bool, bool]) -> str:
            return " ".join([*([names] if part[0] and names else []), *(["width"] if part[1] else [])])

        operation: Any = custom_partitioning(lambda *arguments: call(*arguments))  # type: ignore[no-untyped-call]
        rule = f"{', '.join(map(name, takes))} -> {', '.join(map(name, gives))}"
        operation.def_partition(partition=partition, sharding_rule=rule, need_replication_factors=("width",))
        return operation  # type: ignore[no-any-return]

    def run(*arguments: Array) -> Any:
        return of_rank(arguments[0].ndim - 1)(*arguments)

    batched: Any = jax.custom_batching.custom_vmap(run)

    @batched.def_vmap  # type: ignore[untyped-decorator]
    def rule(size: int, mapped: list[bool], *arguments: Array) -> tuple[Any, Any]:
        """More rows; a scale that differs along the new axis is mapped over, since one call has one scale."""
        if any(is_mapped and not has_rows for is_mapped, (has_rows, _) in zip(mapped, takes, strict=True)):
            results = jax.lax.map(
                lambda one: run(*one), tuple(_repeat(size, m, a) for m, a in zip(mapped, arguments, strict=True))
            )
        else:
            filled = [
                _repeat(size, is_mapped, argument) if has_rows else argument
                for is_mapped, argument, (has_rows, _) in zip(mapped, arguments, takes, strict=True)
            ]
            results = batched(*filled)
        return results, jax.tree.map(lambda _: True, results)

    return batched  # type: ignore[no-any-return]


def _repeat(size: int, is_mapped: bool, argument: Array) -> Array:
    if is_mapped:
        return argument
    return jnp.broadcast_to(argument, (size, *argument.shape))


_forward = _by_rows(_call_forward, (_ROWS_AND_WIDTH, _WIDTH), (_ROWS_AND_WIDTH, _ROWS))
_backward = _by_rows(_call_backward, (_ROWS_AND_WIDTH, _WIDTH, _ROWS, _ROWS_AND_WIDTH), (_ROWS_AND_WIDTH,))
