"""What does a night with a new JAX, and nothing else new, cost whoever has yesterday's image?

Nights are built for real: the locked JAX, and the release before it with every other package the same. They are pushed
to a registry on loopback and compared there, by the manifests that a client reads. The rival is what most Dockerfiles
do: one `RUN pip install` of the same lock on the same base, built and compressed for real. What is to be pulled depends
on how large JAX's own wheels are, which grows by release: the pair of releases that the goals were set for is measured
as well, with the newest Flax that works with it.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from nightjar_ci.images.difference import compare_images, render_difference
from nightjar_ci.images.nights.pack import PackedImage
from nightjar_ci.images.sources import read_registry
from nightjar_ci.web.registry import MANIFEST_TYPE, Repository
from tests.bench.images.workshop import (
    CELL,
    build,
    drop_builds,
    drop_cache,
    locked_version,
    open_workshop,
    other_jax,
    pack,
    say,
)
from tests.bench.table import Row
from tests.ci.registries import run_registry

BEFORE = "0.12.0"  # the release before the locked one, for Python 3.13
EARLIER = ("0.10.1", "0.10.2")  # what the goals were set for
GOAL_MB = {"zstd": 245.0, "gzip": 290.0}
MB = 1e6
NIGHTS = ("old", "new")
NAIVE = """FROM tools AS naive
COPY locks/LOCK.txt /locks/naive.txt
RUN --mount=type=secret,id=index --mount=type=secret,id=ca --mount=type=cache,target=/root/.cache/uv \\
    python-layer.sh install /locks/naive.txt
FROM below
COPY --link --from=naive /target/ /
"""


def measure(flavor: str) -> list[Row]:
    """Bytes to pull, compressed."""
    goals = flavor == "cuda12"
    with open_workshop() as checkout, TemporaryDirectory(prefix="nightjar-bench-") as name:
        memory, lock = Path(name, "memory"), checkout / f"docker/locks/jax-{flavor}.txt"
        pristine = lock.read_text()
        after = locked_version(checkout, flavor, "jax")
        rows = []
        for old, new in ((BEFORE, after), EARLIER):
            tags = []
            for night, version in zip(NIGHTS, (old, new), strict=True):
                if version == after:
                    lock.write_text(pristine)
                else:
                    other_jax(checkout, flavor, version, free=("flax",) if version == EARLIER[0] else ())
                build(checkout, "jax", flavor, night)
                tags.append(f"nightjar-bench/jax:{night}")
            drop_cache()  # stages hold each layer twice more, and `docker save` writes all of them beside
            for compression in ("zstd", "gzip"):
                packed = pack(tags, memory, compression=compression)
                blobs = to_pull(packed[tags[0]], packed[tags[1]])
                reached = goals and (compression == "zstd" or old == EARLIER[0])
                rows.append(
                    Row(
                        name=f"jax {old} -> {new}: to pull, {len(blobs)} of {len(packed[tags[1]].layers)} layers, "
                        f"{compression}",
                        ours=sum(blobs.values()) / MB,
                        goal=GOAL_MB[compression] if reached else None,
                        unit="MB",
                    )
                )
        drop_builds()
        lock.write_text(pristine)
        return [*rows, compare_with_one_layer(checkout, flavor, after, memory, goals=goals)]


def to_pull(old: PackedImage, new: PackedImage) -> dict[str, int]:
    """Bytes of each blob of the new image that the old one has not."""
    there = {layer.digest for layer in old.layers}
    return {layer.digest: layer.size_bytes for layer in new.layers if layer.digest not in there}


def compare_with_one_layer(checkout: Path, flavor: str, after: str, memory: Path, *, goals: bool) -> Row:
    """The share of what the one-layer image costs; all four nights are pushed to a registry and read from there."""
    lock = checkout / f"docker/locks/jax-{flavor}.txt"
    pristine = lock.read_text()
    with run_registry(memory.with_name("registry")) as registry:
        for night in NIGHTS:
            lock.write_text(pristine)
            if night == "old":
                other_jax(checkout, flavor, BEFORE)
            build(checkout, "jax", flavor, night)
            push(registry.repository, memory, {f"ours-{night}": f"nightjar-bench/jax:{night}"})
            push(registry.repository, memory, {f"naive-{night}": build_naive(checkout, flavor, night)})
            drop_builds()  # six gigabytes in one layer, twice: in its stage and in the image
        ours, rival = (
            compare_images(
                *(read_registry(f"{registry.repository.name}:{kind}-{night}", "linux/amd64") for night in NIGHTS)
            )
            for kind in ("ours", "naive")
        )
    say(render_difference(ours))
    return Row(
        name=f"jax {BEFORE} -> {after}: share of the one-layer image's {rival.pulled_bytes / MB:,.0f} MB",
        ours=ours.pulled_bytes / rival.pulled_bytes,
        goal=0.1 if goals else None,
    )


def push(repository: Repository, memory: Path, images: dict[str, str]) -> None:
    """Pushes images of the engine under names of the registry."""
    packed = pack(list(images.values()), memory, repository)
    for name, tag in images.items():
        repository.put_blob(packed[tag].id, packed[tag].config)
        repository.put_manifest(name, packed[tag].manifest, MANIFEST_TYPE)


def build_naive(checkout: Path, flavor: str, night: str) -> str:
    """The whole lock in one layer, on the image below the tree's first Python layer; returns its tag."""
    dockerfile = checkout / "docker/Dockerfile.naive"
    dockerfile.write_text(NAIVE.replace("LOCK", f"jax-{flavor}"))
    cell = CELL.format(image="jax", flavor=flavor)
    base = CELL.format(image="base", flavor=flavor)
    options = ["--set", f"{cell}.dockerfile=Dockerfile.naive", "--set", f"{cell}.contexts.below=target:{base}"]
    build(checkout, "jax", flavor, f"naive-{night}", options)
    return f"nightjar-bench/jax:naive-{night}"
