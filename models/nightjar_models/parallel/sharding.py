"""Shardings of parameters and batches over a mesh.

In: a mesh, and the axes that a model's initializers name (`nnx.with_partitioning`): Megatron's tensor parallelism
(columns of the first matrix over `tensor`, rows of the second), the model's width over `fsdp`, scanned layers over
`pipeline`, experts over `expert`. Out: a JAX mesh with all axes of `AXES`, and shardings on it. The batch is split over
data x fsdp x expert, the positions of a stream over sequence. Initialisation and batch order do not depend on the mesh,
so that a sharded run has the loss curve of a single device, up to the order of sums.

Source: Shoeybi et al. 2019 (Megatron); Rajbhandari et al. 2020 (ZeRO-3).
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from nightjar_models.errors import InputError
from nightjar_models.parallel.mesh import AXES, HOST_DEVICES, MeshShape

BATCH = ("data", "fsdp", "expert")  # the axes over which the examples of a batch are split
_GRID = ("pipeline", "data", "fsdp", "expert", "sequence", "tensor")
_ACTIVE: contextvars.ContextVar[Mesh | None] = contextvars.ContextVar("mesh", default=None)


def make_mesh(shape: MeshShape, given: Sequence[Any] | None = None) -> Mesh:
    """The first devices of this process, or all of several processes, as a mesh with all axes of `AXES`.

    Neighbours along tensor are neighbours in the machine, since they exchange most; pipeline stages exchange least.

    Args:
        given: the devices of a topology that is only compiled for; None for the present ones.
    """
    devices = jax.devices() if given is None else given
    if given is None and jax.process_count() > 1 and len(devices) > shape.size:
        raise InputError(
            f"--mesh {shape}: expected all {len(devices)} devices of {jax.process_count()} processes.",
            "use a larger mesh, or fewer processes",
        )
    if len(devices) < shape.size:
        hint = "use a smaller mesh"
        if devices[0].platform == "cpu":
            hint = f"set {HOST_DEVICES}={shape.size} in XLA_FLAGS"
        raise InputError(
            f"--mesh {shape}: expected at least {shape.size} {devices[0].platform} devices, found {len(devices)}.", hint
        )
    counts = {AXES[name]: count for name, count in dataclasses.asdict(shape).items()}
    grid = np.array(devices[: shape.size]).reshape([counts[axis] for axis in _GRID])
    return Mesh(grid, _GRID, axis_types=(AxisType.Auto,) * len(_GRID))


@contextlib.contextmanager
def use_mesh(mesh: Mesh) -> Iterator[None]:
    """Lays out all that is traced and run inside over this mesh: `active_mesh` tells the layers."""
    token = _ACTIVE.set(mesh)
    try:
        with jax.set_mesh(mesh):
            yield
    finally:
        _ACTIVE.reset(token)


def active_mesh() -> Mesh | None:
    """The mesh of the program that is being traced; None outside of `use_mesh`."""
    return _ACTIVE.get()


def traced_device() -> Any:
    """The first device that the program that is being traced is for."""
    mesh = active_mesh()
    if mesh is None:
        return jax.devices()[0]
    return mesh.devices.flat[0]


def spread_positions(x: Any) -> Any:
    """Splits a stream [B, T, ...] over sequence; without such an axis in the active mesh it stays as it is."""
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
    """Says that the examples of a stream [B, ...] stay split, the other axes in any layout; XLA forgets it in a loop.

    Without it fsdp's split of the parameters spreads to the stream, and each device computes every example. A batch
    that cannot be split evenly stays as it is. Within a `shard_map` it speaks of the axes that this leaves to XLA.

    Args:
        axis: which dimension counts the examples.
        over: the mesh axes over which they are split.
    """
    mesh = active_mesh()
    parts = 1
    if mesh is not None:
        parts = math.prod(mesh.shape[name] for name in over)
    if mesh is None or parts == 1 or jnp.ndim(x) <= axis or x.shape[axis] % parts:
        return x
    names: list[Any] = [PartitionSpec.UNCONSTRAINED] * jnp.ndim(x)
    names[axis] = over
    within = jax.sharding.get_abstract_mesh()
    return jax.lax.with_sharding_constraint(x, split(mesh if within.empty else within, *names))  # type: ignore[no-untyped-call]


def keep_rows_whole(x: Any, axis: int = 0) -> Any:
    """Says that a stream [B, ...] is split over examples only: each device has whole rows.

    For a product with a weight that is split over fsdp and tensor, whose result would be split over tensor again. XLA
    left to itself (jaxlib 0.10.2 to 0.12.0.1) swaps rows of it if data, fsdp and tensor meet: docs/faq.md.
    """
    mesh = active_mesh()
    if mesh is None or mesh.size == 1 or x.shape[axis] % math.prod(mesh.shape[name] for name in BATCH):
        return x
    return jax.lax.with_sharding_constraint(x, split(mesh, *(None,) * axis, BATCH))  # type: ignore[no-untyped-call]


def gather_columns(table: Any) -> Any:
    """Gathers the columns of an embedding [V, D], which lie split over fsdp, so that a lookup finds whole rows.

    XLA left to itself looks up parts of rows and, on a mesh with tensor, too, copies the whole stream to every device
    to put them together.
    """
    mesh = active_mesh()
    if mesh is None or mesh.shape["fsdp"] == 1:
        return table
    return jax.lax.with_sharding_constraint(table, split(mesh, "tensor"))  # type: ignore[no-untyped-call]


def split(mesh: Mesh | AbstractMesh, *axes: str | tuple[str, ...] | None) -> NamedSharding:
    """A sharding that splits each dimension over the mesh axes named for it; without any, every device has all."""
    return NamedSharding(mesh, PartitionSpec(*axes))  # type: ignore[no-untyped-call]


def partitioned(initializer: Any, axes: tuple[str | None, ...]) -> Any:
    """`nnx.with_partitioning` for variables that are made with or without a mesh: `lay_out` places them."""
    return nnx.with_partitioning(initializer, axes, eager_sharding=False)


def lay_out(state: Any, mesh: Mesh) -> Any:
    """The sharding of each variable: split as its initializer says, otherwise replicated.

    A variable of an optimizer has the axes of its parameter; one of another rank, such as Adafactor's, is replicated.
    """
    shardings = []
    for path, variable in nnx.to_flat_state(state):
        if not hasattr(variable.get_value(), "shape"):  # of a parameter that another part of the optimizer moves
            shardings.append((path, variable))
            continue
        axes = variable.get_metadata().get("out_sharding") or ()
        if len(axes) != len(variable.shape) or variable.shape == (1,):  # Adafactor's placeholder
            axes = ()
        for size, axis in zip(variable.shape, axes, strict=False):
            if axis is not None and size % mesh.shape[axis]:
                name = ".".join(map(str, path[1:]))  # without its place in (model, optimizer)
                raise InputError(
                    f"--mesh: {name} {variable.shape} has a side of {size}, "
                    f"expected a multiple of the mesh's {axis} ({mesh.shape[axis]}).",
                    "choose another mesh, or change the size with --set",
                )
        shardings.append((path, variable.replace(split(mesh, *axes))))
    return nnx.from_flat_state(shardings)


def batch_sharding(mesh: Mesh, batch_size: int, accumulate: int = 1) -> NamedSharding:
    """The batch, each of its microbatches split over data x fsdp x expert."""
    parts = accumulate * math.prod(mesh.shape[axis] for axis in BATCH)
    if batch_size % parts:
        factors = f"data x fsdp x expert x compute.accumulate ({parts})"
        raise InputError(f"batch_size: expected a multiple of {factors}, found {batch_size}.")
    return split(mesh, BATCH)


def find_share(sharding: NamedSharding, batch_size: int) -> tuple[int, int]:
    """Which of how many equal parts of a batch this process's devices hold; the whole if they are no such part."""
    indices = sharding.addressable_devices_indices_map((batch_size,)).values()
    rows = {index[0].indices(batch_size)[:2] for index in indices if index is not None}
    begin, end = min(start for start, _ in rows), max(stop for _, stop in rows)
    held = sum(stop - start for start, stop in rows)
    if held != end - begin or batch_size % held or begin % held:
        return 0, 1
    return begin // held, batch_size // held


def put_batch(batch: Mapping[str, Any], sharding: NamedSharding, batch_size: int | None = None) -> dict[str, Any]:
    """Moves a batch of NumPy arrays to the devices.

    Args:
        batch: this process's share of it, or the whole.
        batch_size: of the whole batch; None if `batch` is the whole.
    """
    if sharding.is_fully_addressable:
        placed: dict[str, Any] = jax.device_put(dict(batch), sharding)
        return placed
    make: Any = jax.make_array_from_process_local_data
    return {name: make(sharding, value, (batch_size or len(value), *value.shape[1:])) for name, value in batch.items()}
