"""The flavour of an image for a driver and a GPU. Pure.

In: a driver version, and a compute capability or the name of a GPU. Out: for each flavour whether it runs there, and
the reason if it does not.

Source: developer.nvidia.com/cuda-gpus (compute capabilities); `support.py` for the floors of the wheels.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from nightjar_ci.errors import InputError
from nightjar_ci.images.publish.support import CAPABILITY_FLOORS, DRIVER_FLOORS

CAPABILITIES = {
    "p100": 60, "v100": 70, "t4": 75, "rtx2080": 75, "a100": 80, "a30": 80, "a10": 86, "a40": 86, "rtx3090": 86,
    "l4": 89, "l40": 89, "l40s": 89, "rtx4090": 89, "h100": 90, "h200": 90, "gh200": 90, "b200": 100, "gb200": 100,
    "b300": 103, "gb300": 103, "rtx5090": 120,
}  # fmt: skip


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
    name = gpu.lower().replace(" ", "").replace("-", "").removeprefix("nvidia")
    if number := re.fullmatch(r"(\d{1,2})\.(\d)", name):
        return int(number[1]) * 10 + int(number[2])
    if name in CAPABILITIES:
        return CAPABILITIES[name]
    similar = difflib.get_close_matches(name, CAPABILITIES, n=1)
    hint = f"did you mean {similar[0]!r}?" if similar else "give its compute capability, such as 9.0"
    raise InputError(f"unknown GPU {gpu!r}: expected one of {', '.join(CAPABILITIES)}.", hint)


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
    elif int(driver.partition(".")[0]) < int(DRIVER_FLOORS[major]):
        reason = f"driver {driver} is older than {DRIVER_FLOORS[major]}"
    elif capability < CAPABILITY_FLOORS[major]:
        reason = f"compute capability {capability / 10} is below {CAPABILITY_FLOORS[major] / 10}"
    return Fit(flavor=f"cuda{major}", reason=reason)
