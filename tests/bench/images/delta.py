"""What does a night with a new JAX, and nothing else new, cost whoever has yesterday's image?

Nights are built for real: the locked JAX, and the release before it with every other package the same. They are pushed
to a registry on loopback and compared there, by the manifests that a client reads.

CUDA 12 takes 20 GB of disk: whatever an image holds is removed from the engine's build cache first.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from nightjar_ci.settings import read_settings
from nightjar_ci.web.registry import MANIFEST_TYPE, Repository
from tests.bench.images.workshop import (
    CHECKOUT,
    build,
    drop_cache,
    drop_images,
    drop_stages,
    locked_version,
    open_workshop,
    other_jax,
    pack,
)
from tests.bench.table import Row
from tests.ci.registries import run_registry

BEFORE = "0.12.0"  # the release before the locked one, for Python 3.13
GOAL_MB = 245.0
MB = 1e6
NIGHTS = ("old", "new")


def list_goals(flavor: str) -> list[str]:
    if flavor != "cuda12":  # the goals are of CUDA's sizes
        return []
    return [f"jax {BEFORE} -> {locked_version(CHECKOUT, flavor, 'jax')}: to pull, "]


def measure(flavor: str) -> list[Row]:
    with open_workshop() as checkout, TemporaryDirectory(prefix="nightjar-bench-") as name:
        pristine = (checkout / f"docker/locks/jax-{flavor}.txt").read_text()
        after = locked_version(checkout, flavor, "jax")
        with run_registry(Path(name, "registry")) as registry:
            before, night = push_nights(checkout, flavor, registry.repository, pristine)
    sizes = [size for digest, size in night.items() if digest not in before]
    layers = f"jax {BEFORE} -> {after}: to pull, {len(sizes)} of {len(night)} layers"
    return [Row(name=layers, ours=sum(sizes) / MB, goal=GOAL_MB if flavor == "cuda12" else None, unit="MB")]


def push_nights(checkout: Path, flavor: str, repository: Repository, pristine: str) -> list[dict[str, int]]:
    """Builds two nights and pushes them: the layers of each, digest to size, as its manifest has them."""
    tags = []
    for night in NIGHTS:
        write_lock(checkout, flavor, night, pristine)
        build(checkout, "jax", flavor, night)
        drop_stages()
        tags.append(f"nightjar-bench/jax:{night}")
    drop_cache()  # `docker save` writes all layers beside
    push(repository, dict(zip(NIGHTS, tags, strict=True)))
    drop_images()
    manifests = [repository.read_manifest(night)[0] for night in NIGHTS]
    return [{layer["digest"]: layer["size"] for layer in manifest["layers"]} for manifest in manifests]


def push(repository: Repository, images: dict[str, str]) -> None:
    """Pushes images of the engine under names of the registry."""
    packed = pack(list(images.values()), read_settings().state_dir / "layers", repository)
    for name, tag in images.items():
        repository.put_blob(packed[tag].id, packed[tag].config)
        repository.put_manifest(name, packed[tag].manifest, MANIFEST_TYPE)


def write_lock(checkout: Path, flavor: str, night: str, pristine: str) -> None:
    (checkout / f"docker/locks/jax-{flavor}.txt").write_text(pristine)
    if night == "old":
        other_jax(checkout, flavor, BEFORE)
