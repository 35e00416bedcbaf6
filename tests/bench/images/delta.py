"""What does a night with a new JAX, and nothing else new, cost whoever has yesterday's image?

Nights are built for real: the locked JAX, and the release before it with every other package the same. They are pushed
to a registry on loopback and compared there, by the manifests that a client reads.

CUDA 12 takes 20 GB of disk: whatever an image holds is removed from the engine's build cache first.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from nightjar_ci.images.content.difference import ImageDifference, compare_images, render_difference
from nightjar_ci.images.sources import read_registry
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
    say,
)
from tests.bench.table import Row
from tests.ci.registries import run_registry

BEFORE = "0.12.0"  # the release before the locked one, for Python 3.13
GOAL_MB = 245.0
MB = 1e6
NIGHTS = ("old", "new")


def name_goal(flavor: str) -> str:
    return f"jax {BEFORE} -> {locked_version(CHECKOUT, flavor, 'jax')}: to pull, "


def list_goals(flavor: str) -> list[str]:
    return [name_goal(flavor)] if flavor == "cuda12" else []


def measure(flavor: str) -> list[Row]:
    goal = GOAL_MB if flavor == "cuda12" else None
    with (
        open_workshop() as checkout,
        TemporaryDirectory(prefix="nightjar-bench-") as name,
        run_registry(Path(name, "registry")) as registry,
    ):
        found = compare_nights(checkout, flavor, registry.repository)
    blobs = {layer.digest: layer.size_bytes for layer in found.layers if layer.pulled}
    title = f"{name_goal(flavor)}{len(blobs)} of {len(found.layers)} layers"
    return [Row(title, sum(blobs.values()) / MB, goal=goal, unit="MB")]


def compare_nights(checkout: Path, flavor: str, repository: Repository) -> ImageDifference:
    """Builds two nights, pushes them and reads from the registry what differs."""
    lock = checkout / f"docker/locks/jax-{flavor}.txt"
    pristine = lock.read_text()
    for night in NIGHTS:
        lock.write_text(pristine)
        if night == "old":
            other_jax(checkout, flavor, BEFORE)
        build(checkout, "jax", flavor, night)
        drop_stages()
    drop_cache()  # `docker save` writes all layers beside
    push(repository, {night: f"nightjar-bench/jax:{night}" for night in NIGHTS})
    drop_images()
    found = compare_images(*(read_registry(f"{repository.name}:{night}", "linux/amd64") for night in NIGHTS))
    say(render_difference(found))
    return found


def push(repository: Repository, images: dict[str, str]) -> None:
    """Pushes images of the engine under names of the registry."""
    packed = pack(list(images.values()), read_settings().state_dir / "layers", repository)
    for name, tag in images.items():
        repository.put_blob(packed[tag].id, packed[tag].config)
        repository.put_manifest(name, packed[tag].manifest, MANIFEST_TYPE)
