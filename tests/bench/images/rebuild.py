"""How long does a build take when nothing changed, and when only JAX did and its wheels are in the cache?"""

import uuid
from pathlib import Path

from tests.bench.images.workshop import build, open_workshop
from tests.bench.table import Row

CHANGED = ("jaxlib", "jax")  # the builder stages of a night with a new JAX


def list_goals(flavor: str) -> list[str]:
    return ["nothing changed", "a new JAX, wheels in the cache"]


def measure(flavor: str) -> list[Row]:
    with open_workshop() as checkout:
        build(checkout, "jax", flavor, "rebuild")
        same = min(build(checkout, "jax", flavor, "rebuild") for _ in range(3))
        pristine = (checkout / "docker/Dockerfile.jax").read_text()
        times = []
        for _ in range(2):
            forget_stages(checkout, pristine)
            times.append(build(checkout, "jax", flavor, "rebuild"))
    return [
        Row("nothing changed", same, goal=5.0, unit="s"),
        Row("a new JAX, wheels in the cache", min(times), goal=30.0, unit="s"),
    ]


def forget_stages(checkout: Path, dockerfile: str) -> None:
    """Makes the stages of a new JAX run again, by a step of each that was never run before and leaves something: what
    follows a step that leaves nothing may come from the cache."""
    for stage in CHANGED:
        begin = f"FROM tools AS {stage}\n"
        assert begin in dockerfile
        dockerfile = dockerfile.replace(begin, f"{begin}RUN echo {uuid.uuid4()} >/never-before\n")
    (checkout / "docker/Dockerfile.jax").write_text(dockerfile)
