"""What does each nightly image support? CUDA, cuDNN, NCCL, driver, JAX, TE, DALI, GPU architectures, date by date.
Pure.

In: a nightly index. Out: a row for each night, as data and as a markdown page. A version that an image does not hold
is absent, never guessed.

Source: docs.jax.dev/en/latest/installation.html, "pip installation: NVIDIA GPU": driver floors and compute
capabilities of the wheels for CUDA 12 and 13.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nightjar_ci.images.publish.nightly_index import Night, NightlyIndex

DRIVER_FLOORS = {12: "525", 13: "580"}
GPU_ARCHITECTURES = {12: "sm_52 and newer", 13: "sm_75 and newer"}
_ABSENT = "-"
_COLUMNS = (
    ("date", "night"),
    ("name", "image"),
    ("platforms", "platforms"),
    ("jax", "JAX"),
    ("cuda", "CUDA"),
    ("cudnn", "cuDNN"),
    ("nccl", "NCCL"),
    ("te", "TE"),
    ("dali", "DALI"),
    ("driver_floor", "driver from"),
    ("gpu_architectures", "GPUs"),
)
TITLES = tuple(title for _, title in _COLUMNS)
_PACKAGES = {
    "jax": r"jax",
    "cuda": r"nvidia-cuda-runtime(-cu\d+)?",
    "cudnn": r"nvidia-cudnn-cu\d+",
    "nccl": r"nvidia-nccl-cu\d+",
    "te": r"transformer-engine(-jax)?",
    "dali": r"nvidia-dali-cuda\d+",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """A night's row; None where the image does not hold it."""

    date: str
    name: str
    platforms: tuple[str, ...]
    jax: str | None
    cuda: str | None
    cudnn: str | None
    nccl: str | None
    te: str | None
    dali: str | None
    driver_floor: str | None
    gpu_architectures: str | None


def describe_support(index: NightlyIndex) -> tuple[Support, ...]:
    """A row for each night, the newest first."""
    ordered = sorted(sorted(index.images, key=lambda night: night.name), key=lambda night: night.date, reverse=True)
    return tuple(_describe(night) for night in ordered)


def render_rows(rows: Iterable[Support]) -> list[list[str]]:
    """The cells of each row, as text, in the order of `TITLES`."""
    return [[_cell(getattr(row, key)) for key, _ in _COLUMNS] for row in rows]


def render_support(rows: Iterable[Support]) -> str:
    """The rows as a page of markdown."""
    lines = [
        "# Support matrix",
        "",
        "What each nightly image holds and runs on; `nightjar-ci images support` makes it from the nightly index.",
        "",
        f"| {' | '.join(TITLES)} |",
        f"|{'---|' * len(_COLUMNS)}",
    ]
    lines += [f"| {' | '.join(cells)} |" for cells in render_rows(rows)]
    return "\n".join(lines) + "\n"


def _describe(night: Night) -> Support:
    versions = {key: _find(night.packages, pattern) for key, pattern in _PACKAGES.items()}
    plugin = next((found for name in night.packages if (found := re.fullmatch(r"jax-cuda(\d+)-plugin", name))), None)
    major = int(plugin[1]) if plugin else None
    return Support(
        date=night.date,
        name=night.name,
        platforms=tuple(night.platforms),
        driver_floor=DRIVER_FLOORS.get(major) if major else None,
        gpu_architectures=GPU_ARCHITECTURES.get(major) if major else None,
        **versions,
    )


def _find(packages: Mapping[str, str], pattern: str) -> str | None:
    return next((version for name, version in packages.items() if re.fullmatch(pattern, name)), None)


def _cell(value: object) -> str:
    return ", ".join(value) or _ABSENT if isinstance(value, tuple) else _ABSENT if value is None else str(value)
