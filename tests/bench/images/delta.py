"""What does a night with a new JAX, and nothing else new, cost whoever has yesterday's image?

Two nights are built for real: the locked JAX, and the release before it with every other package the same. They are
pushed to a registry on loopback and compared there, by the manifests that a client reads. The rival is what most
Dockerfiles do: one `RUN pip install` of the same lock on the same base, built and compressed for real.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from nightjar_ci.images.difference import compare_images, render_difference
from nightjar_ci.images.sources import read_registry
from nightjar_ci.web.registry import MANIFEST_TYPE
from tests.bench.images.workshop import CELL, build, locked_version, open_workshop, other_jax, pack, say
from tests.bench.table import Row
from tests.ci.registries import run_registry

BEFORE = "0.12.0"  # the release before the locked one, for Python 3.13
MB = 1e6
NAIVE = """FROM tools AS naive
COPY locks/LOCK.txt /locks/naive.txt
RUN --mount=type=secret,id=index --mount=type=secret,id=ca --mount=type=cache,target=/root/.cache/uv \\
    python-layer.sh install /locks/naive.txt
FROM below
COPY --link --from=naive /target/ /
"""


def measure(flavor: str) -> list[Row]:
    """Bytes to pull, compressed."""
    with open_workshop() as checkout, TemporaryDirectory(prefix="nightjar-bench-") as name:
        memory, names = Path(name, "memory"), ("new", "old")
        pristine = (checkout / f"docker/locks/jax-{flavor}.txt").read_text()
        after = locked_version(checkout, flavor, "jax")
        tags, rivals = {}, {}
        for night in names:
            (checkout / f"docker/locks/jax-{flavor}.txt").write_text(pristine)
            if night == "old":
                other_jax(checkout, flavor, BEFORE)
            build(checkout, "jax", flavor, night)
            tags[night] = f"nightjar-bench/jax:{night}"
            rivals[night] = build_naive(checkout, flavor, night)
        with run_registry(Path(name, "registry")) as registry:
            repository = registry.repository
            packed = pack([*tags.values(), *rivals.values()], memory, repository)
            for night in names:
                for kind, tag in (("ours", tags[night]), ("naive", rivals[night])):
                    repository.put_blob(packed[tag].id, packed[tag].config)
                    repository.put_manifest(f"{kind}-{night}", packed[tag].manifest, MANIFEST_TYPE)
            ours, rival = (
                compare_images(
                    *(read_registry(f"{repository.name}:{kind}-{night}", "linux/amd64") for night in ("old", "new"))
                )
                for kind in ("ours", "naive")
            )
        larger = pack(list(tags.values()), memory, compression="gzip")
    say(render_difference(ours))
    there = {layer.digest for layer in larger[tags["old"]].layers}
    gzip = {layer.digest: layer.size_bytes for layer in larger[tags["new"]].layers if layer.digest not in there}
    blobs = sum(layer.pulled for layer in ours.layers)
    goals = flavor == "cuda12"
    return [
        Row(
            name=f"jax {BEFORE} -> {after}: to pull, {blobs} of {len(ours.layers)} layers",
            ours=ours.pulled_bytes / MB,
            goal=245.0 if goals else None,
            unit="MB",
            rival="one layer",
            rival_value=rival.pulled_bytes / MB,
        ),
        Row(
            name="the same, pushed with --compression gzip",
            ours=sum(gzip.values()) / MB,
            goal=290.0 if goals else None,
            unit="MB",
        ),
        Row(
            name="share of the one-layer image's",
            ours=ours.pulled_bytes / rival.pulled_bytes,
            goal=0.1 if goals else None,
        ),
    ]


def build_naive(checkout: Path, flavor: str, night: str) -> str:
    """The whole lock in one layer, on the image below the tree's first Python layer; returns its tag."""
    dockerfile = checkout / "docker/Dockerfile.naive"
    dockerfile.write_text(NAIVE.replace("LOCK", f"jax-{flavor}"))
    cell = CELL.format(image="jax", flavor=flavor)
    base = CELL.format(image="base", flavor=flavor)
    options = ["--set", f"{cell}.dockerfile=Dockerfile.naive", "--set", f"{cell}.contexts.below=target:{base}"]
    build(checkout, "jax", flavor, f"naive-{night}", options)
    return f"nightjar-bench/jax:naive-{night}"
