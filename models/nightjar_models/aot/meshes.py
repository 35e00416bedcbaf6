"""Which meshes are worth a compilation, and in which order?

In: a model's parameters by size and logical axes, a number of devices, and what a device has room for. Out: meshes that
split every parameter evenly, the likely fastest first; and the bytes of their state on each device.

Tensor parallelism and experts stay within a host, since they exchange activations in every layer; a pipeline idles
while it fills. So the meshes without either come first, then those with ever more, of each kind first the one whose
parameters are gathered within a host, if there is room for them. Experts are split first of all where there are any:
else each layer gathers all of them, for tokens that want few.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nightjar_models.parallel.mesh import AXES, MeshShape
from nightjar_models.parallel.sharding import RULES

STATE_BYTES = 16  # of a parameter: itself, its gradient (a clipped step has all at once), Adam's two moments; float32
STAGES = (2, 4)  # of a pipeline; more of them idle longer than they save where tensor parallelism is at hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter: how large each dimension is, and its logical axis of `sharding.RULES`, or None."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]

    def size_on(self, mesh: MeshShape) -> int:
        """How many of its numbers each device holds."""
        return math.prod(-(-size // count) for size, count in zip(self.shape, self._counts(mesh), strict=True))

    def is_even_on(self, mesh: MeshShape) -> bool:
        """Whether every device holds as many."""
        return all(size % count == 0 for size, count in zip(self.shape, self._counts(mesh), strict=True))

    def _counts(self, mesh: MeshShape) -> Iterator[int]:
        counts = {long: getattr(mesh, short) for short, long in AXES.items()}
        return (1 if axis is None else counts[RULES[axis]] for axis in self.axes)


def state_bytes(parameters: Iterable[Parameter], mesh: MeshShape) -> int:
    """What parameters, gradients and optimizer take on each device."""
    return STATE_BYTES * sum(one.size_on(mesh) for one in parameters)


def list_meshes(devices: int, per_host: int, parameters: Sequence[Parameter], room_bytes: int) -> list[MeshShape]:
    """The meshes that are tried, in that order; those without room for the state come last.

    Args:
        devices: how many there are.
        per_host: devices that NVLink joins.
        parameters: of the model, layers stacked where a pipeline can split them.
        room_bytes: what a step may take of each device.

    >>> wide = Parameter(shape=(4, 1024, 1024), axes=("layers", "width", "feed_forward"))
    >>> [str(mesh) for mesh in list_meshes(8, 8, [wide], 1 << 30)]
    ['dp8', 'fsdp8', 'dp4.tp2', 'dp4.pp2', 'dp2.tp4', 'dp2.pp4', 'tp8', 'tp4.pp2', 'tp2.pp4', 'fsdp4.tp2', 'fsdp2.tp4']
    """
    ordered: dict[MeshShape, tuple[int, ...]] = {}
    for tensor, experts, stages in _list_families(devices, per_host, parameters):
        within, rest = tensor * experts, devices // (tensor * experts * stages)
        state = state_bytes(parameters, MeshShape(tp=tensor, ep=experts, pp=stages))
        host = min(rest, max(1, per_host // within))
        splits = (1, host, rest) if 4 * state <= room_bytes else (host, rest, 1)
        tried = 0
        for fsdp in dict.fromkeys(splits):
            if rest % fsdp:
                continue
            mesh = MeshShape(dp=rest // fsdp, fsdp=fsdp, tp=tensor, ep=experts, pp=stages)
            large = state_bytes(parameters, mesh) > room_bytes
            if not all(one.is_even_on(mesh) for one in parameters) or (stages > 1 and (tried or large)):
                continue
            cost = (tensor * stages).bit_length() - 1
            ordered[mesh] = (large, tried if cost else 0, cost, experts == 1, stages)
            tried += not large
    return sorted(ordered, key=lambda mesh: ordered[mesh])


def _list_families(devices: int, per_host: int, parameters: Sequence[Parameter]) -> Iterator[tuple[int, int, int]]:
    """Tensor, experts and stages of the meshes that are tried."""
    host = min(devices, per_host)
    tensors = [1 << power for power in range(host.bit_length()) if host % (1 << power) == 0]
    groups = [math.gcd(host, count) for count in _sizes("experts", parameters)]
    together = sorted({1, *groups})
    for tensor in tensors:
        yield from ((tensor, experts, 1) for experts in together if host % (tensor * experts) == 0)
    for stages in STAGES if _sizes("layers", parameters) else ():
        if devices % stages == 0:
            most = max((one for one in tensors if devices // stages % one == 0), default=1)
            yield from ((1, experts, stages) for experts in together if devices // stages % experts == 0)
            if most > 1:
                yield most, 1, stages


def _sizes(axis: str, parameters: Iterable[Parameter]) -> set[int]:
    return {size for one in parameters for size, name in zip(one.shape, one.axes, strict=True) if name == axis}
