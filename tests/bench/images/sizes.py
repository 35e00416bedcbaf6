"""How large are the images, compressed, and what takes the room? Beside what others publish."""

from __future__ import annotations

from nightjar_ci.settings import read_settings
from tests.bench.images.workshop import build, open_workshop, pack
from tests.bench.table import Row

MB, GB = 1e6, 1e9
# JAX-Toolbox's `jax` image, compressed, as its pull request 1067 (2024) measures it: 6.43 to 6.49 GB.
JAX_TOOLBOX_GB = 6.43
NAMED = 3


def measure(flavor: str) -> list[Row]:
    """Compressed bytes of the jax image and of each of its layers."""
    with open_workshop() as checkout:
        build(checkout, "jax", flavor, "sizes")
        image = pack(["nightjar-bench/jax:sizes"], read_settings().state_dir / "layers").popitem()[1]
    layers = {layer.digest: layer for layer in image.layers}
    total = sum(layer.size_bytes for layer in layers.values())
    goals = flavor == "cuda12"
    rows = [
        Row(
            name="jax image, compressed",
            ours=total / GB,
            goal=3.5 if goals else None,
            unit="GB",
            rival="JAX-Toolbox, published 2024" if goals else "",
            rival_value=JAX_TOOLBOX_GB if goals else None,
        ),
        Row(
            name="largest layer",
            ours=max(layer.size_bytes for layer in layers.values()) / MB,
            goal=800.0,
            unit="MB",
        ),
    ]
    for layer in layers.values():
        held = sorted(name for name, _ in layer.contents.python.values())
        more = f" and {len(held) - NAMED} more" if len(held) > NAMED else ""
        named = ", ".join(held[:NAMED]) + more if held else "OS" if layer.contents.system else "files of the OS"
        rows.append(Row(name=f"layer {named}", ours=layer.size_bytes / MB, unit="MB"))
    return rows
