"""Do two builds without a cache give the same bytes? Every layer, the configuration and the manifest."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.images.workshop import CHECKOUT, build, layers_of, open_workshop, pack
from tests.bench.table import Row

IMAGES = ("base", "jax", "models")


def measure(flavor: str) -> list[Row]:
    """Shares of layers and manifests that are the same; the builds share only the ground floor and downloads."""
    rows = []
    with open_workshop():
        for image in IMAGES:
            tags = [f"nightjar-bench/{image}:{build_}" for build_ in ("first", "second")]
            for tag in tags:
                build(CHECKOUT, image, flavor, tag.rpartition(":")[2], ["--no-cache"])
            (first_id, first), (second_id, second) = map(layers_of, tags)
            same = sum(a == b for a, b in zip(first, second, strict=True)) / len(first)
            rows.append(Row(name=f"{image}: layers the same", ours=same, goal=1.0, better="higher"))
            rows.append(
                Row(
                    name=f"{image}: configuration the same",
                    ours=float(first_id == second_id),
                    goal=1.0,
                    better="higher",
                )
            )
        with TemporaryDirectory() as first_memory, TemporaryDirectory() as second_memory:
            packed = [
                pack([f"nightjar-bench/base:{name}"], Path(memory)).popitem()[1].manifest
                for name, memory in (("first", first_memory), ("second", second_memory))
            ]
        rows.append(Row(name="base: manifest the same", ours=float(packed[0] == packed[1]), goal=1.0, better="higher"))
    return rows
