"""How large are the images, compressed, and the largest layer of each?"""

from nightjar_ci.settings import read_settings
from tests.bench.images.workshop import build, drop_cache, drop_stages, open_workshop, pack
from tests.bench.table import Row

MB = 1e6
LAYER_MB, IMAGE_MB = 800.0, 3500.0


def list_images(flavor: str) -> tuple[str, ...]:
    return ("jax",) if flavor == "cpu" else ("jax", "te", "dali")


def list_goals(flavor: str) -> list[str]:
    layers = [f"largest layer that {name} adds" for name in list_images(flavor)]
    return [*(["jax image, compressed"] if flavor == "cuda12" else []), *layers]


def measure(flavor: str) -> list[Row]:
    images = list_images(flavor)
    with open_workshop() as checkout:
        for name in images:
            build(checkout, name, flavor, "sizes")
            drop_stages()
        drop_cache()  # `docker save` writes all layers beside
        tags = {name: f"nightjar-bench/{name}:sizes" for name in images}
        packed = pack(list(tags.values()), read_settings().state_dir / "layers")
    rows, seen = list[Row](), set[str]()
    for name, tag in tags.items():
        layers = packed[tag].layers
        goal = IMAGE_MB if (name, flavor) == ("jax", "cuda12") else None
        total = sum(layer.size_bytes for layer in layers)
        rows.append(Row(f"{name} image, compressed", total / MB, goal=goal, unit="MB"))
        largest = max(layer.size_bytes for layer in layers if layer.digest not in seen)
        rows.append(Row(f"largest layer that {name} adds", largest / MB, goal=LAYER_MB, unit="MB"))
        seen |= {layer.digest for layer in layers} if name == "jax" else set()
    return rows
