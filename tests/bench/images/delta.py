"""What does a night with a new JAX, and nothing else new, cost whoever has yesterday's image?

Nights are built for real: the locked JAX, and the release before it with every other package the same. They are pushed
to a registry on loopback and compared there, by the manifests that a client reads. The rival is what most Dockerfiles
do: one `RUN pip install` of the same lock on the same base, built for both nights and compressed for real.

CUDA 12 takes 20 GB of disk: whatever an image holds is removed from the engine's build cache first.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from nightjar_ci.images.build import inspect_image
from nightjar_ci.settings import read_settings
from nightjar_ci.web.registry import MANIFEST_TYPE, Repository
from tests.bench.images.workshop import (
    CELL,
    CHECKOUT,
    build,
    drop_builds,
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
NAIVE = """FROM tools AS naive
COPY locks/LOCK.txt /locks/naive.txt
RUN --mount=type=secret,id=index --mount=type=secret,id=ca --mount=type=cache,target=/root/.cache/uv \\
    python-layer.sh install /locks/naive.txt
FROM below
COPY --link --from=naive /target/ /
"""


def list_goals(flavor: str) -> list[str]:
    if flavor != "cuda12":  # the goals are of CUDA's sizes
        return []
    after = locked_version(CHECKOUT, flavor, "jax")
    return [f"jax {BEFORE} -> {after}: to pull, ", f"jax {BEFORE} -> {after}: share of the one-layer image's "]


def measure(flavor: str) -> list[Row]:
    goals = flavor == "cuda12"
    with open_workshop() as checkout, TemporaryDirectory(prefix="nightjar-bench-") as name:
        pristine = (checkout / f"docker/locks/jax-{flavor}.txt").read_text()
        after = locked_version(checkout, flavor, "jax")
        with run_registry(Path(name, "registry")) as registry:
            before, night = push_nights(checkout, flavor, registry.repository, pristine)
        blobs = {digest: size for digest, size in night.items() if digest not in before}
        rival = compress_one_layer(checkout, flavor, Path(name), pristine)
    pulled, pair = sum(blobs.values()), f"jax {BEFORE} -> {after}"
    share = f"{pair}: share of the one-layer image's {rival / MB:,.0f} MB"
    layers = f"{pair}: to pull, {len(blobs)} of {len(night)} layers"
    return [
        Row(name=layers, ours=pulled / MB, goal=GOAL_MB if goals else None, unit="MB"),
        Row(name=share, ours=pulled / rival, goal=0.1 if goals else None),
    ]


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


def compress_one_layer(checkout: Path, flavor: str, folder: Path, pristine: str) -> int:
    """The bytes to pull of the one-layer image, of the second night: its only layer of packages is another one."""
    layers = []
    for night in NIGHTS:
        drop_builds()  # six gigabytes, in a stage and in the image
        write_lock(checkout, flavor, night, pristine)
        tag = build_naive(checkout, flavor, night)
        match inspect_image(tag):
            case {"RootFS": {"Layers": [*digests]}}:
                layers.append([str(digest) for digest in digests])
    drop_cache()
    (image,) = pack([tag], folder / "memory").values()
    differing = [old != new for old, new in zip(*layers, strict=True)]
    return sum(layer.size_bytes for layer, differs in zip(image.layers, differing, strict=True) if differs)


def build_naive(checkout: Path, flavor: str, night: str) -> str:
    """The whole lock in one layer, on the image below the tree's first Python layer; returns its tag."""
    dockerfile = checkout / "docker/Dockerfile.naive"
    dockerfile.write_text(NAIVE.replace("LOCK", f"jax-{flavor}"))
    cell = CELL.format(image="jax", flavor=flavor)
    base = CELL.format(image="base", flavor=flavor)
    options = ["--set", f"{cell}.dockerfile=Dockerfile.naive", "--set", f"{cell}.contexts.below=target:{base}"]
    build(checkout, "jax", flavor, f"naive-{night}", options)
    return f"nightjar-bench/jax:naive-{night}"
