"""Shardings of parameters and batches over a mesh.

In: a mesh, and the logical axes that a model gives its parameters. Out: a JAX mesh with all axes of `AXES`, and
shardings on it. The batch is split over data x fsdp x expert, the positions of a stream over sequence. Initialisation
and batch order do not depend on the mesh, so that a sharded run has the loss curve of a single device, up to the order
of sums.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from nightjar_models.errors import InputError
from nightjar_models.parallel.mesh import AXES, HOST_DEVICES, MeshShape

# Logical axis of a parameter to mesh axis: Megatron's tensor parallelism (columns of the first matrix, rows of the
# second), and the model's width over fsdp. Source: Shoeybi et al. 2019; Rajbhandari et al. 2020 (ZeRO-3).
# Layers that are scanned over are split into the stages of a pipeline, experts over their own axis.
RULES = {
    "vocabulary": "tensor",
    "heads": "tensor",
    "feed_forward": "tensor",
    "width": "fsdp",
    "layers": "pipeline",
    "experts": "expert",
}

DRAWN_TOGETHER = 2**18  # numbers of an array from which it is; rounding keeps the small presets as they were
BATCH = ("data", "fsdp", "expert")  # the axes over which the examples of a batch are split
_GRID = ("pipeline", "data", "fsdp", "expert", "sequence", "tensor")
_ACTIVE: contextvars.ContextVar[Mesh | None] = contextvars.ContextVar("mesh", default=None)


def make_mesh(shape: MeshShape, given: Sequence[Any] | None = None) -> Mesh:
    """The first devices of this process, or all of several processes, as a mesh with all axes of `AXES`.

    Neighbours along tensor are neighbours in the machine, since they exchange most; pipeline stages exchange least.

    Args:
        shape: how many devices along each axis.
        given: the devices of a topology that is only compiled for; None for those that are there.

    Raises:
        InputError: there are fewer devices than the mesh needs; or more, so that a process would have none.
    """
    devices = jax.devices() if given is None else given
    if given is None and jax.process_count() > 1 and len(devices) > shape.size:
        raise InputError(
            f"--mesh {shape}: expected all {len(devices)} devices of {jax.process_count()} processes.",
            "use a larger mesh, or fewer processes",
        )
    if len(devices) < shape.size:
        hint = f"set {HOST_DEVICES}={shape.size} in XLA_FLAGS" if devices[0].platform == "cpu" else "use a smaller mesh"
        raise InputError(
            f"--mesh {shape}: expected at least {shape.size} {devices[0].platform} devices, found {len(devices)}.", hint
        )
    counts = {AXES[name]: count for name, count in dataclasses.asdict(shape).items()}
    grid = np.array(devices[: shape.size]).reshape([counts[axis] for axis in _GRID])
    return Mesh(grid, _GRID)


@contextlib.contextmanager
def use_mesh(mesh: Mesh) -> Iterator[None]:
    """What is traced inside is laid out over this mesh: `active_mesh` tells the layers."""
    token = _ACTIVE.set(mesh)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def active_mesh() -> Mesh | None:
    """The mesh of the program that is being traced; None outside of `use_mesh`."""
    return _ACTIVE.get()


def traced_device() -> Any:
    """The first device that the program that is being traced is for."""
    mesh = active_mesh()
    return jax.devices()[0] if mesh is None else mesh.devices.flat[0]


def is_for_cpu() -> bool:
    """Whether a CPU computes the program that is being traced: XLA is slow at other things there than on a GPU."""
    platform: str = traced_device().platform
    return platform == "cpu"


def spread_positions(x: Any) -> Any:
    """Splits a stream [B, T, ...] over sequence; without such an axis in the active mesh it stays as it is.

    Raises:
        InputError: the positions cannot be split evenly.
    """
    mesh = active_mesh()
    if mesh is None or mesh.shape["sequence"] == 1 or jnp.ndim(x) < 3:
        return x
    if x.shape[1] % mesh.shape["sequence"]:
        raise InputError(
            f"--mesh: a stream has {x.shape[1]} positions, expected a multiple of the mesh's sequence "
            f"({mesh.shape['sequence']}).",
            "choose another mesh, or change the length with --set",
        )
    return jax.lax.with_sharding_constraint(x, split(mesh, BATCH, "sequence"))  # type: ignore[no-untyped-call]


def keep_batch_split(x: Any, axis: int = 0, over: tuple[str, ...] = BATCH) -> Any:
    """Says that the examples of a stream [B, ...] stay split, however the rest lies; XLA forgets it in a loop.

    Without it fsdp's split of the parameters spreads to the stream, and each device computes every example. A batch
    that cannot be split evenly stays as it is. Within a `shard_map` it speaks of the axes that this leaves to XLA.

    Args:
        x: the stream.
        axis: which dimension counts the examples.
        over: the mesh axes over which they are split.
    """
    mesh = active_mesh()
    parts = 1 if mesh is None else math.prod(mesh.shape[name] for name in over)
    if mesh is None or parts == 1 or jnp.ndim(x) <= axis or x.shape[axis] % parts:
        return x
    names: list[Any] = [PartitionSpec.UNCONSTRAINED] * jnp.ndim(x)
    names[axis] = over
    within = jax.sharding.get_abstract_mesh()
    return jax.lax.with_sharding_constraint(x, split(mesh if within.empty else within, *names))  # type: ignore[no-untyped-call]


def keep_rows_whole(x: Any, axis: int = 0) -> Any:
    """Says that of a stream [B, ...] nothing but the examples is split: each device has whole rows.

    For a product with a weight that is split over fsdp and tensor, whose result would be split over tensor again. XLA
    left to itself (jaxlib 0.10.2 to 0.12.0.1) swaps rows of it where data, fsdp and tensor meet: docs/faq.md.

    Args:
        x: the stream.
        axis: which dimension counts the examples.
    """
    mesh = active_mesh()
    if mesh is None or mesh.size == 1 or x.shape[axis] % math.prod(mesh.shape[name] for name in BATCH):
        return x
    return jax.lax.with_sharding_constraint(x, split(mesh, *(None,) * axis, BATCH))  # type: ignore[no-untyped-call]


def split(mesh: Mesh | AbstractMesh, *axes: str | tuple[str, ...] | None) -> NamedSharding:
    """A sharding that splits each dimension over the mesh axes named for it; without any, every device has all."""
    return NamedSharding(mesh, PartitionSpec(*axes))  # type: ignore[no-untyped-call]


class Keys:
    """Random keys, one after the other: those of `nnx.Rngs(seed).params`; and numbers drawn from them.

    It counts in Python. The count of `nnx.Rngs` is a variable, and while a model is traced each change of it takes as
    long as all that was traced before (flax 0.12.8): 6 s for the 80 layers of a Llama, of which 0.4 s are left.

    Args:
        seed: of the first key.
        shapes: of all that will be drawn, as `shapes` tells once the same model was built. Large arrays of one shape
            are then drawn together: each by itself, the compiler takes 32 s of CPU for those of gpt3_126m on a GPU,
            and together 5 s. Which numbers they are stays the same, up to rounding.
    """

    def __init__(self, seed: int | Array, shapes: Sequence[tuple[int, ...] | None] = ()) -> None:
        self._key = jax.random.key(seed) if isinstance(seed, int) else seed
        self.shapes: list[tuple[int, ...] | None] = []
        self._drawn: dict[int, Array] = {}
        for shape in dict.fromkeys(shapes):
            if shape is not None and math.prod(shape) >= DRAWN_TOGETHER:
                places = [place for place, other in enumerate(shapes) if other == shape]
                drawn = jax.vmap(functools.partial(self._draw, shape))(jnp.array(places))
                # else each place where one is used would draw it anew
                drawn = jax.lax.optimization_barrier(drawn)  # type: ignore[no-untyped-call]
                self._drawn |= {place: drawn[number] for number, place in enumerate(places)}

    def params(self) -> Array:
        """The next key."""
        self.shapes.append(None)
        return jax.random.fold_in(self._key, len(self.shapes) - 1)

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Float32 numbers of the normal distribution, from the next key."""
        self.shapes.append(shape)
        place = len(self.shapes) - 1
        return self._drawn[place] if place in self._drawn else self._draw(shape, place)

    def _draw(self, shape: tuple[int, ...], place: int | Array) -> Array:
        return jax.random.normal(jax.random.fold_in(self._key, place), shape, jnp.float32)


def parameter(
    rngs: Keys,
    shape: tuple[int, ...],
    axes: tuple[str | None, ...],
    *,
    deviation: float | None = None,
    constant: float = 0.0,
) -> nnx.Param[Any]:
    """A float32 parameter that knows its logical axes.

    Args:
        rngs: where random numbers come from.
        shape: one size per axis.
        axes: one logical axis of `RULES` per dimension, or None where it is never split.
        deviation: standard deviation of a normal distribution; None for a constant.
        constant: the value of all elements where there is no deviation.
    """
    if deviation is None:
        return nnx.Param(jnp.full(shape, constant, jnp.float32), axes=axes)
    return nnx.Param(deviation * rngs.normal(shape), axes=axes)


def parameter_sharding(mesh: Mesh, path: str, shape: tuple[int, ...], axes: tuple[str | None, ...]) -> NamedSharding:
    """Where the parts of a parameter lie.

    Raises:
        InputError: a dimension cannot be split evenly.
    """
    over = [RULES[axis] if axis is not None else None for axis in axes]
    for size, axis, name in zip(shape, axes, over, strict=True):
        if name is not None and size % mesh.shape[name]:
            raise InputError(
                f"--mesh: {path} has {axis} {size}, expected a multiple of the mesh's {name} ({mesh.shape[name]}).",
                "choose another mesh, or change the size with --set",
            )
    return split(mesh, *over)


def batch_sharding(mesh: Mesh, batch_size: int) -> NamedSharding:
    """The batch, split over data x fsdp x expert.

    Raises:
        InputError: the batch cannot be split evenly.
    """
    parts = math.prod(mesh.shape[axis] for axis in BATCH)
    if batch_size % parts:
        raise InputError(f"batch_size: expected a multiple of data x fsdp x expert ({parts}), found {batch_size}.")
    return split(mesh, BATCH)


def put_batch(batch: Mapping[str, Any], sharding: NamedSharding) -> dict[str, Any]:
    """Moves a batch of NumPy arrays to the devices; each process moves what its devices hold.

    For a batch of two arrays `jax.device_put` takes three times as long (jax 0.10.2, on a CPU: 0.13 ms and 0.05 ms).
    A single CPU gets the arrays themselves: the call of a program takes them over in less time than is needed to move
    them, and what the host does while XLA uses every core is added to the step (`vae_tiny`: 0.008 of it).
    """
    if sharding.mesh.size == 1 and sharding.mesh.devices.flat[0].platform == "cpu":
        return dict(batch)
    return {
        name: jax.make_array_from_callback(value.shape, sharding, lambda index, value=value: value[index])  # type: ignore[misc]
        for name, value in batch.items()
    }
