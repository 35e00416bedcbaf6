"""Do two builds without a cache give the same bytes? Every layer, the configuration and the manifest."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.images.workshop import CHECKOUT, build, layers_of, open_workshop, pack
from tests.bench.table import Row

IMAGES = ("base", "jax", "models")
BUILDS = ("first", "second")


def measure(flavor: str) -> list[Row]:
    """Shares of layers, and manifests, that are the same; the builds share only the ground floor and downloads."""
    rows = []
    with open_workshop():
        for name in BUILDS:
            build(CHECKOUT, IMAGES, flavor, name, ["--no-cache"])
        manifests = []
        for name in BUILDS:
            with TemporaryDirectory() as memory:  # its own, so that every layer is compressed in its turn
                packed = pack([f"nightjar-bench/{image}:{name}" for image in IMAGES], Path(memory))
            manifests.append({tag.partition(":")[0]: image.manifest for tag, image in packed.items()})
        for image in IMAGES:
            (first_id, first), (second_id, second) = (layers_of(f"nightjar-bench/{image}:{name}") for name in BUILDS)
            same = sum(a == b for a, b in zip(first, second, strict=True)) / len(first)
            one, other = (found[f"nightjar-bench/{image}"] for found in manifests)
            shares = {"layers": same, "configuration": float(first_id == second_id), "manifest": float(one == other)}
            rows += [
                Row(name=f"{image}: {what} the same", ours=share, goal=1.0, better="higher")
                for what, share in shares.items()
            ]
    return rows
