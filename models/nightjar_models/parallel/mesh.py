"""Mesh shapes such as `dp2.fsdp2.tp2` or `pp2.sp2.ep2`.

In: the text, and the user's XLA_FLAGS. Out: the number of devices along each axis, and XLA_FLAGS under which the CPU
offers that many. Nothing here imports JAX, since both must be set before JAX starts.
"""

from __future__ import annotations

import dataclasses
import math
import re

from nightjar_models.errors import InputError, did_you_mean

AXES = {"dp": "data", "fsdp": "fsdp", "tp": "tensor", "sp": "sequence", "ep": "expert", "pp": "pipeline"}
HOST_DEVICES = "--xla_force_host_platform_device_count"


@dataclasses.dataclass(frozen=True, slots=True)
class MeshShape:
    """How many devices along each axis.

    Attributes:
        dp: data: each has all parameters and a part of the batch.
        fsdp: each has a part of the parameters and of the batch, and gathers the parameters when it needs them.
        tp: tensor: each has a part of every matrix, of the heads and of the vocabulary.
        sp: sequence: each has a part of the positions.
        ep: expert: each has some of the experts, and a part of the batch for all other layers.
        pp: pipeline: each has some of the layers; microbatches pass from one to the next.

    >>> str(parse_mesh("dp2.fsdp2.tp2")), parse_mesh("dp2.tp4").size
    ('dp2.fsdp2.tp2', 8)
    """

    dp: int = 1
    fsdp: int = 1
    tp: int = 1
    sp: int = 1
    ep: int = 1
    pp: int = 1

    @property
    def size(self) -> int:
        return math.prod(dataclasses.astuple(self))

    def __str__(self) -> str:
        parts = [f"{name}{count}" for name, count in dataclasses.asdict(self).items() if count > 1]
        return ".".join(parts) or "dp1"


def parse_mesh(text: str) -> MeshShape:
    """Reads a mesh such as `dp1`, `fsdp8`, `dp2.fsdp2.tp2` or `dp=2,tp=4`; an axis that is not named has one device."""
    counts: dict[str, int] = {}
    for part in text.replace("=", "").replace(",", ".").split("."):
        match = re.fullmatch(r"([a-z]+)([1-9][0-9]{0,5})", part)
        axis = match[1] if match else part.rstrip("0123456789")
        if match is None or axis not in AXES:
            known = ", ".join(f"{name}N" for name in AXES)
            hint = did_you_mean(axis, AXES) if axis not in AXES else None
            raise InputError(f"--mesh {text}: part {part!r}: expected one of {known}, such as dp2.fsdp2.tp2.", hint)
        if axis in counts:
            raise InputError(f"--mesh {text}: axis {axis!r} is named twice: expected once.")
        counts[axis] = int(match[2])
    return MeshShape(**counts)


def render_xla_flags(flags: str, devices: int) -> str:
    """XLA_FLAGS under which the CPU offers at least that many devices; the user's own flags stay.

    >>> render_xla_flags("--xla_cpu_enable_fast_math=false", 8)
    '--xla_cpu_enable_fast_math=false --xla_force_host_platform_device_count=8'
    """
    if devices == 1 or HOST_DEVICES in flags:
        return flags
    return f"{flags} {HOST_DEVICES}={devices}".strip()
