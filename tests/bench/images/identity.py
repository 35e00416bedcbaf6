"""Do two builds without a cache give the same bytes? Every layer, the configuration and the manifest, as pushed.

What the first build left is gone before the second begins: of CUDA 12 each takes 20 GB of disk while it is built. What
was compressed of the first is not remembered for the second, so that manifests are the same by their bytes alone.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.bench.images.workshop import CHECKOUT, build, drop_builds, drop_stages, open_workshop, pack, say
from tests.bench.table import Row

IMAGES = ("base", "jax", "models", "devel")
BUILDS = ("first", "second")


def list_goals(flavor: str) -> list[str]:
    return [f"{image}: {what} the same" for image in IMAGES for what in ("layers", "configuration", "manifest")]


def measure(flavor: str) -> list[Row]:
    rows = []
    with open_workshop():
        builds = []
        for name in BUILDS:
            build(CHECKOUT, IMAGES, flavor, name, ["--no-cache"])
            drop_stages()
            tags = {image: f"nightjar-bench/{image}:{name}" for image in IMAGES}
            with TemporaryDirectory(prefix="nightjar-bench-") as memory:
                packed = pack(list(tags.values()), Path(memory))
            builds.append({image: packed[tag] for image, tag in tags.items()})
            drop_builds()
        for image in IMAGES:
            one, other = (found[image] for found in builds)
            pairs = list(zip(one.layers, other.layers, strict=True))
            for layer in (a for a, b in pairs if a.diff_id != b.diff_id):
                say(
                    f"{image}: another layer of {', '.join(sorted(name for name, _ in layer.contents.python.values()))}"
                )
            same = sum(a.diff_id == b.diff_id for a, b in pairs) / len(pairs)
            shares = {"layers": same, "configuration": one.id == other.id, "manifest": one.manifest == other.manifest}
            rows += [
                Row(f"{image}: {what} the same", float(share), goal=1.0, better="higher")
                for what, share in shares.items()
            ]
    return rows
