"""The flavour of an image for a driver and a GPU. Pure.

In: a driver version, and a compute capability or the name of a GPU. Out: for each flavour whether it runs there, and
the reason if it does not.

Source: developer.nvidia.com/cuda-gpus (compute capabilities); docs.nvidia.com/datacenter/tesla/drivers, "Supported
architectures" (the first driver of each); `support.py` for the floors of the wheels.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from nightjar_ci.errors import InputError
from nightjar_ci.images.publish.support import CAPABILITY_FLOORS, DRIVER_FLOORS
from nightjar_ci.images.tree import find_architecture

CAPABILITIES = {
    "p100": 60, "v100": 70, "t4": 75, "rtx2080": 75, "a100": 80, "a30": 80, "a10": 86, "a40": 86, "rtx3090": 86,
    "l4": 89, "l40": 89, "l40s": 89, "rtx4090": 89, "h100": 90, "h200": 90, "gh200": 90, "b200": 100, "gb200": 100,
    "b300": 103, "gb300": 103, "thor": 110, "rtx5090": 120, "rtxpro6000": 120, "gb10": 121, "dgxspark": 121,
}  # fmt: skip
# These GPUs share a board with an Arm processor.
ARM = ("gh200", "gb200", "gb300", "thor", "gb10", "dgxspark")
# The first driver branch of GPUs that are newer than the floors of the wheels.
FIRST_DRIVERS = {100: 570, 103: 580, 110: 580, 120: 570, 121: 580}
# CUDA 12 knew Thor as 10.1, and its libraries hold no code for 11.0.
FIRST_CUDA = {110: 13}
_OTHERS = re.compile(r"(amd|radeon|instinct|mi\d{2,3}[axp]?$|rx\d|intel|arc[ab]?\d|gaudi|tpu|apple|m\d$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a flavour runs on a machine; `reason` is empty if it does."""

    flavor: str
    reason: str


def read_capability(gpu: str) -> int:
    """The compute capability of a GPU, by name or number.

    >>> read_capability("H100"), read_capability("8.6")
    (90, 86)
    """
    name = _simplify(gpu)
    if number := re.fullmatch(r"(\d{1,2})\.(\d)", name):
        return int(number[1]) * 10 + int(number[2])
    if name in CAPABILITIES:
        return CAPABILITIES[name]
    if _OTHERS.match(name):
        raise InputError(f"{gpu!r} is no GPU of NVIDIA: only the flavour cpu runs there.", "pull nightjar/jax:cpu")
    similar = difflib.get_close_matches(name, CAPABILITIES, n=1)
    hint = "give its compute capability, such as 9.0 (nvidia-smi --query-gpu=compute_cap --format=csv)"
    if similar:
        hint = f"did you mean {similar[0]!r}? Else {hint}"
    raise InputError(f"unknown GPU {gpu!r}: expected one of {', '.join(CAPABILITIES)}.", hint)


def tag_architecture(gpu: str) -> str:
    """The architecture of a GPU's host, or of this machine if none is named, as image tags name it.

    >>> tag_architecture("GB200"), tag_architecture("h100")
    ('arm64', 'amd64')
    """
    if not gpu:
        return find_architecture()
    if _simplify(gpu) in ARM:
        return "arm64"
    return "amd64"


def judge_flavors(driver: str | None, capability: int | None) -> tuple[Fit, ...]:
    """Each flavour, the best one first.

    Args:
        driver: version, such as `550.54.15`; None: no driver.
        capability: the lowest of the machine's GPUs, such as 90; None: no GPU.

    >>> [(fit.flavor, fit.reason) for fit in judge_flavors("550.54", 90)]
    [('cuda12', ''), ('cpu', ''), ('cuda13', 'driver 550.54 is older than 580')]
    """
    fits = [_judge(major, driver, capability) for major in sorted(DRIVER_FLOORS, reverse=True)]
    fits.append(Fit(flavor="cpu", reason=""))
    return tuple(sorted(fits, key=lambda fit: bool(fit.reason)))


def _judge(major: int, driver: str | None, capability: int | None) -> Fit:
    reason = ""
    if driver is None or capability is None:
        reason = "no NVIDIA driver or GPU"
    elif major < (first := FIRST_CUDA.get(capability, 0)):
        reason = f"compute capability {capability / 10} begins with CUDA {first}"
    elif (found := int(driver.partition(".")[0])) < int(DRIVER_FLOORS[major]):
        reason = f"driver {driver} is older than {DRIVER_FLOORS[major]}"
    elif found < (least := FIRST_DRIVERS.get(capability, 0)):
        reason = f"driver {driver} is older than {least}, the first for compute capability {capability / 10}"
    elif capability < CAPABILITY_FLOORS[major]:
        reason = f"compute capability {capability / 10} is below {CAPABILITY_FLOORS[major] / 10}"
    return Fit(flavor=f"cuda{major}", reason=reason)


def _simplify(gpu: str) -> str:
    return re.sub(r"[\s_-]", "", gpu.lower()).removeprefix("nvidia").removeprefix("jetson")
