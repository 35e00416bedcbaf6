"""Do two builds without a cache give the same bytes? Every layer, the configuration and the manifest.

What the first build left is gone before the second begins: of CUDA 12 each takes 25 GB of disk while it is built.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.images.workshop import CHECKOUT, build, drop_builds, layers_of, open_workshop, pack
from tests.bench.table import Row

IMAGES = ("base", "jax", "models")
BUILDS = ("first", "second")


def measure(flavor: str) -> list[Row]:
    """Shares of layers, and manifests, that are the same; the builds share only the ground floor and downloads."""
    rows = []
    with open_workshop():
        manifests, layers = [], []
        for name in BUILDS:
            build(CHECKOUT, IMAGES, flavor, name, ["--no-cache"])
            tags = {image: f"nightjar-bench/{image}:{name}" for image in IMAGES}
            with TemporaryDirectory() as memory:  # its own, so that every layer is compressed in its turn
                packed = pack(list(tags.values()), Path(memory))
            manifests.append({image: packed[tag].manifest for image, tag in tags.items()})
            layers.append({image: layers_of(tag) for image, tag in tags.items()})
            drop_builds()
        for image in IMAGES:
            (first_id, first), (second_id, second) = (found[image] for found in layers)
            same = sum(a == b for a, b in zip(first, second, strict=True)) / len(first)
            one, other = (found[image] for found in manifests)
            shares = {"layers": same, "configuration": float(first_id == second_id), "manifest": float(one == other)}
            rows += [
                Row(name=f"{image}: {what} the same", ours=share, goal=1.0, better="higher")
                for what, share in shares.items()
            ]
    return rows
