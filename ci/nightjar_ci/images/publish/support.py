"""The support matrix of nightly images: CUDA, cuDNN, NCCL, driver, JAX, TE, DALI and GPU architectures by date. Pure.

In: a nightly index. Out: a row for each image, as data and as a markdown page. A version that an image does not have is
absent, never guessed.

Source: docs.jax.dev/en/latest/installation.html, "pip installation: NVIDIA GPU": driver floors;
docs.nvidia.com/deeplearning/cudnn/backend/v9.24.0/reference/support-matrix.html: compute capabilities.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from nightjar_ci.images.publish.nightly_index import NightlyImage, NightlyIndex

DRIVER_FLOORS = {12: "525", 13: "580"}
CAPABILITY_FLOORS = {12: 75, 13: 75}  # cuDNN's for both; JAX's wheels for CUDA 12 begin at 5.2
GPU_ARCHITECTURES = {major: f"sm_{floor} and newer" for major, floor in CAPABILITY_FLOORS.items()}
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
    """The row of a nightly image; None: the image does not have it."""

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
    ordered = sorted(sorted(index.images, key=lambda night: night.name), key=lambda night: night.date, reverse=True)
    return tuple(_describe(night) for night in ordered)


def render_rows(rows: Iterable[Support]) -> list[list[str]]:
    return [[_render_cell(getattr(row, key)) for key, _ in _COLUMNS] for row in rows]


def _describe(night: NightlyImage) -> Support:
    versions = {
        key: next((version for name, version in night.packages.items() if re.fullmatch(pattern, name)), None)
        for key, pattern in _PACKAGES.items()
    }
    plugins = filter(None, (re.fullmatch(r"jax-cuda(\d+)-plugin", name) for name in night.packages))
    major = next((int(plugin[1]) for plugin in plugins), 0)
    return Support(
        date=night.date,
        name=night.name,
        platforms=tuple(night.platforms),
        driver_floor=DRIVER_FLOORS.get(major),
        gpu_architectures=GPU_ARCHITECTURES.get(major),
        **versions,
    )


def _render_cell(value: str | tuple[str, ...] | None) -> str:
    text = ", ".join(value) if isinstance(value, tuple) else value
    return text or _ABSENT
