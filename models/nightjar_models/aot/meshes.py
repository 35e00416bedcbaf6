"""Meshes that are worth a compilation, in the order to try them.

In: a model's parameters by size and mesh axes, a number of devices, and the memory limit of a device. Out: meshes
that split every parameter evenly, the likely fastest first; and the bytes of their state on each device.

Tensor parallelism and experts stay within a host, since they exchange activations in every layer; a pipeline idles
while it fills. So meshes without either come first, then those with more and more of them; of each kind the first is
the one that gathers parameters within a host, if they fit. A model with experts always splits them first: otherwise
each layer gathers all experts, although its tokens use few.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nightjar_models.parallel.mesh import AXES, MeshShape

STATE_BYTES = 16  # of a parameter: value, gradient (clipping needs all at once), Adam's two moments; float32
STAGES = (2, 4)  # of a pipeline; with more stages tensor parallelism is faster, since a long pipeline idles longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter: how large each dimension is, and the mesh axis it is split over, or None."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]

    def size_on(self, mesh: MeshShape) -> int:
        return math.prod(-(-size // count) for size, count in zip(self.shape, self._counts(mesh), strict=True))

    def is_even_on(self, mesh: MeshShape) -> bool:
        """Whether all devices hold the same number of elements."""
        return all(size % count == 0 for size, count in zip(self.shape, self._counts(mesh), strict=True))

    def _counts(self, mesh: MeshShape) -> Iterator[int]:
        counts = {long: getattr(mesh, short) for short, long in AXES.items()}
        return (1 if axis is None else counts[axis] for axis in self.axes)


def state_bytes(parameters: Iterable[Parameter], mesh: MeshShape) -> int:
    """Bytes of parameters, gradients and optimizer state on each device."""
    return STATE_BYTES * sum(parameter.size_on(mesh) for parameter in parameters)


def list_meshes(devices: int, per_host: int, parameters: Sequence[Parameter], room_bytes: int) -> list[MeshShape]:
    """The meshes in the order to try them; meshes whose state does not fit come last.

    Args:
        parameters: of the model, layers stacked if a pipeline can split them.

    >>> wide = Parameter(shape=(4, 1024, 1024), axes=("pipeline", "fsdp", "tensor"))
    >>> [str(mesh) for mesh in list_meshes(8, 8, [wide], 1 << 30)]
    ['dp8', 'fsdp8', 'dp4.tp2', 'dp4.pp2', 'dp2.tp4', 'dp2.pp4', 'tp8', 'tp4.pp2', 'tp2.pp4', 'fsdp4.tp2', 'fsdp2.tp4']
    """
    ordered: dict[MeshShape, tuple[int, ...]] = {}
    for tensor, experts, stages in _list_families(devices, per_host, parameters):
        within, remaining = tensor * experts, devices // (tensor * experts * stages)
        state = state_bytes(parameters, MeshShape(tp=tensor, ep=experts, pp=stages))
        host = min(remaining, max(1, per_host // within))
        splits = (1, host, remaining) if 4 * state <= room_bytes else (host, remaining, 1)
        tried = 0
        for fsdp in dict.fromkeys(splits):
            if remaining % fsdp:
                continue
            mesh = MeshShape(dp=remaining // fsdp, fsdp=fsdp, tp=tensor, ep=experts, pp=stages)
            large = state_bytes(parameters, mesh) > room_bytes
            if not all(parameter.is_even_on(mesh) for parameter in parameters) or (stages > 1 and (tried or large)):
                continue
            cost = (tensor * stages).bit_length() - 1
            ordered[mesh] = (large, tried if cost else 0, cost, experts == 1, stages)
            tried += not large
    return sorted(ordered, key=lambda mesh: ordered[mesh])


def _list_families(devices: int, per_host: int, parameters: Sequence[Parameter]) -> Iterator[tuple[int, int, int]]:
    """Sizes of the axes for tensors, experts and stages of the meshes to try."""
    host = min(devices, per_host)
    tensors = [1 << power for power in range(host.bit_length()) if host % (1 << power) == 0]
    groups = [math.gcd(host, count) for count in _sizes("expert", parameters)]
    expert_splits = sorted({1, *groups})
    for tensor in tensors:
        yield from ((tensor, experts, 1) for experts in expert_splits if host % (tensor * experts) == 0)
    for stages in STAGES if _sizes("pipeline", parameters) else ():
        if devices % stages == 0:
            most = max((tensor for tensor in tensors if devices // stages % tensor == 0), default=1)
            yield from ((1, experts, stages) for experts in expert_splits if devices // stages % experts == 0)
            if most > 1:
                yield most, 1, stages


def _sizes(axis: str, parameters: Iterable[Parameter]) -> set[int]:
    return {
        size
        for parameter in parameters
        for size, name in zip(parameter.shape, parameter.axes, strict=True)
        if name == axis
    }
