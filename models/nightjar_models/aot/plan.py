"""Memory limit of a step on a GPU, and the command that trains the compiled program.

In: a device's memory, the best candidate's outcome and the user's settings. Out: bytes, and a shell command.

JAX allocates a fraction of the device's memory at start: `XLA_CLIENT_MEM_FRACTION`, 0.75 by default. The remainder is
for CUDA's context and kernels, NCCL and cuDNN. A step cannot use all of JAX's part: the next batch, evaluation and
fragmentation need some. Both fractions are assumptions, not measured.

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
OF_STEP = 0.95  # of JAX's memory
_QUOTED, _ESCAPED = re.compile(r'(["\\$`])'), r"\\\1"  # characters with a meaning within double quotes


def room_bytes(device_bytes: int, fraction: float = MOST_FRACTION) -> int:
    """Memory limit of a step on a device of which JAX takes a fraction.

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
    """The shell command that trains the best candidate.

    Args:
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
    if fraction > DEFAULT_FRACTION:
        return f"{VARIABLE}={fraction:.2f} {plan}"
    return plan


def _spell(value: object) -> str:
    """A value in the spelling of XLA's flags."""
    return str(value).lower() if isinstance(value, bool) else str(value)
