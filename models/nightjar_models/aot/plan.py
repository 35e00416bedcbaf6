"""What may a step take of a GPU's memory, and which command trains as was compiled?

In: a device's memory, what was measured of the best candidate, and the user's settings. Out: bytes, and a line for a
shell.

JAX takes a share of the device's memory at its start, in one piece: `XLA_CLIENT_MEM_FRACTION`, 0.75 unless told. The
rest is for CUDA's context and kernels, NCCL and cuDNN. Not all of the piece is the step's: the next batch, evaluation
and gaps between values want some. Both shares are assumptions, not measured here.

Source: openxla/xla, xla/pjrt/gpu/gpu_helpers.cc (CreateBFCAllocator: total memory x fraction); jaxlib/xla_client.py
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence

from nightjar_models.aot.fit import Measured

VARIABLE = "XLA_CLIENT_MEM_FRACTION"
DEFAULT_FRACTION = 0.75  # JAX's own
MOST_FRACTION = 0.9  # of an H100 it leaves 7.9 GiB to CUDA, NCCL and cuDNN
OF_STEP = 0.95  # of what JAX takes
_QUOTED, _ESCAPED = re.compile(r'(["\\$`])'), r"\\\1"  # what a shell reads within double quotes


def room_bytes(device_bytes: int, fraction: float = MOST_FRACTION) -> int:
    """What a step may take of a device of which JAX takes a fraction.

    >>> round(room_bytes(80 * 2**30) / 2**30, 2)
    68.4
    """
    return int(device_bytes * fraction * OF_STEP)


def needed_fraction(reserved_bytes: int, device_bytes: int) -> float:
    """The fraction that JAX must take for a step, at least its default; rounded up to a hundredth.

    >>> needed_fraction(40 * 2**30, 80 * 2**30), needed_fraction(60 * 2**30, 80 * 2**30)
    (0.75, 0.79)
    """
    return max(DEFAULT_FRACTION, math.ceil(100 * reserved_bytes / OF_STEP / device_bytes) / 100)


def render_plan(preset: str, best: Measured, device_bytes: int, settings: Sequence[str] = ()) -> str:
    """The command that trains so, as a shell takes it.

    Args:
        preset: what is trained.
        best: how; it was compiled.
        device_bytes: memory of a device.
        settings: the user's `KEY=VALUE`, with which it was compiled.
    """
    chosen = dict(setting.partition("=")[::2] for setting in [*settings, *best.candidate.settings])
    words = ["nightjar-models", "train", preset, "--mesh", str(best.candidate.mesh)]
    for name, value in chosen.items():
        words += ["--set", f"{name}={value}"]
    plan = f"{shlex.join(words)} --out OUT"
    if flags := " ".join(f"--{name}={_spell(value)}" for name, value in best.options.items()):
        plan = f'XLA_FLAGS="$XLA_FLAGS {_QUOTED.sub(_ESCAPED, flags)}" {plan}'
    fraction = needed_fraction(best.reserved_bytes or 0, device_bytes)
    return f"{VARIABLE}={fraction:.2f} {plan}" if fraction > DEFAULT_FRACTION else plan


def _spell(value: object) -> str:
    """A value as XLA's flags have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
