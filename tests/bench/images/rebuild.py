"""How long does a build take when nothing changed, and when only JAX did and its wheels are in the cache?"""

from __future__ import annotations

from tests.bench.images.workshop import CELL, build, open_workshop
from tests.bench.table import Row

CHANGED = ("jaxlib", "jax")  # the builder stages of a night with a new JAX


def measure(flavor: str) -> list[Row]:
    """Seconds of wall time; on a machine that does something else they say little."""
    with open_workshop() as checkout:
        build(checkout, "jax", flavor, "rebuild")
        same = min(build(checkout, "jax", flavor, "rebuild") for _ in range(3))
        only = ["--set", f"{CELL.format(image='jax', flavor=flavor)}.no-cache-filter={','.join(CHANGED)}"]
        new = min(build(checkout, "jax", flavor, "rebuild", only) for _ in range(2))
    return [
        Row(name="nothing changed", ours=same, goal=5.0, unit="s"),
        Row(name="a new JAX, wheels in the cache", ours=new, goal=30.0, unit="s"),
    ]
