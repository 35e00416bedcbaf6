"""How large are the images, compressed, and what takes the room? Beside what others publish.

Where their registries are reached, the others' images are measured by their manifests, as ours are. Elsewhere the last
figure that somebody published stands beside ours with its month; of NGC only the size of an unpacked image was found.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from nightjar_ci.errors import NightjarError
from nightjar_ci.images.publish.layer_blob import ZSTD_LEVEL
from nightjar_ci.images.sources import read_registry
from nightjar_ci.images.zstandard import zstd
from nightjar_ci.settings import read_settings
from nightjar_ci.tools import run_captured
from tests.bench.images.workshop import CHECKOUT, build, drop_cache, drop_stages, open_workshop, pack, say
from tests.bench.table import Row

MB, GB = 1e6, 1e9
NAMED = 3
TOOLS = "uv, pip, git with its libraries, less and procps, compressed"
ADDED = ("git", "less", "procps")
# All that leaves with those packages where nothing else is asked for, and what base has in its Python environment.
LIST_TOOLS = """
exec 3>&1 >/dev/null
apt-mark auto $(dpkg-query --show --showformat '${Package} ') && apt-mark manual "$@"
packages=$(apt-get --simulate purge --autoremove ADDED | awk '/^(Purg|Remv) /{ print $2 }')
dpkg --listfiles $packages | sort -u >/tmp/all
while read -r file; do if [ -e "$file" ] && [ ! -d "$file" ]; then echo "$file"; fi; done </tmp/all >/tmp/list
tar --create --file - --files-from /tmp/list /opt/nightjar/bin/uv* /opt/nightjar/bin/pip* \\
  /opt/nightjar/lib/python3*/site-packages/* >&3
""".replace("ADDED", " ".join(ADDED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """An image of somebody else, and what was published of its size, as it is pulled or unpacked."""

    name: str
    reference: str
    published_gb: float
    published: str
    source: str
    unpacked: bool = False


RIVALS = (
    Rival(
        name="JAX-Toolbox jax",
        reference="ghcr.io/nvidia/jax:jax",
        published_gb=6.43,
        published="October 2024",
        source="NVIDIA/JAX-Toolbox pull request 1067: 6.42759e9 bytes, and 6.49304e9 with Ray",
    ),
    Rival(
        name="NGC jax 24.10",
        reference="nvcr.io/nvidia/jax:24.10-py3",
        published_gb=12.5,
        published="January 2025",
        source="what `docker images` said, in uedake/zenn, articles/install_jax_gpu.md; NVIDIA names no size",
        unpacked=True,
    ),
)


def list_leaves(flavor: str) -> tuple[str, ...]:
    """The leaves whose layers are measured."""
    return () if flavor == "cpu" else ("te", "dali")


def list_goals(flavor: str) -> list[str]:
    """The names of this part's goals."""
    layers = ["largest layer", *(f"largest layer that {name} adds" for name in list_leaves(flavor))]
    return [*(["jax image, compressed"] if flavor == "cuda12" else []), TOOLS, *layers]


def measure(flavor: str) -> list[Row]:
    """Compressed bytes of the jax image and of each of its layers; and of each layer that the leaves add."""
    goals = flavor == "cuda12"
    leaves = list_leaves(flavor)
    with open_workshop() as checkout:
        tags = [f"nightjar-bench/{name}:sizes" for name in ("jax", *leaves)]
        for name in ("jax", *leaves):
            build(checkout, name, flavor, "sizes")
            drop_stages()
        build(checkout, "base", flavor, "sizes")
        tools = measure_tools("nightjar-bench/base:sizes")
        unpacked = int(run_captured(["docker", "image", "inspect", "--format", "{{.Size}}", tags[0]]))
        drop_cache()  # `docker save` writes all layers beside
        packed = pack(tags, read_settings().state_dir / "layers")
    layers = {layer.digest: layer for layer in packed[tags[0]].layers}
    total = sum(layer.size_bytes for layer in layers.values())
    rows = [Row(name="jax image, compressed", ours=total / GB, goal=3.5 if goals else None, unit="GB")]
    rows += [compare(total, unpacked, rival) for rival in RIVALS if goals]
    rows.append(Row(name=TOOLS, ours=tools / MB, goal=40.0, unit="MB"))
    largest = max(layer.size_bytes for layer in layers.values())
    rows.append(Row(name="largest layer", ours=largest / MB, goal=800.0, unit="MB"))
    for name, tag in zip(leaves, tags[1:], strict=True):
        added = {layer.digest: layer for layer in packed[tag].layers if layer.digest not in layers}
        largest = max(layer.size_bytes for layer in added.values())
        rows.append(Row(name=f"largest layer that {name} adds", ours=largest / MB, goal=800.0, unit="MB"))
        size = sum(layer.size_bytes for layer in packed[tag].layers)
        rows.append(Row(name=f"{name} image, compressed", ours=size / GB, unit="GB"))
    for layer in layers.values():
        held = sorted(name for name, _ in layer.contents.python.values())
        more = f" and {len(held) - NAMED} more" if len(held) > NAMED else ""
        named = ", ".join(held[:NAMED]) + more if held else "OS" if layer.contents.system else "files of the OS"
        rows.append(Row(name=f"layer {named}", ours=layer.size_bytes / MB, unit="MB"))
    return rows


def measure_tools(tag: str) -> int:
    """What those pay who only run programs, for those who work in the image: bytes, compressed as layers are."""
    listed = (CHECKOUT / "docker/os-packages.txt").read_text().splitlines()
    kept = {line.split()[0] for line in listed if line and not line.startswith("#")} - set(ADDED)
    argv = ["docker", "run", "--rm", "--network", "none", "--user", "0", tag, "bash", "-ec", LIST_TOOLS, "-", *kept]
    return len(zstd.compress(subprocess.run(argv, capture_output=True, check=True).stdout, ZSTD_LEVEL))


def compare(pulled_bytes: int, unpacked_bytes: int, rival: Rival) -> Row:
    """Ours beside a rival: measured where its registry answers, else as published."""
    try:
        value = read_registry(rival.reference, "linux/amd64").size_bytes / GB
        ours, how = pulled_bytes, "compressed, measured"
    except NightjarError as error:
        say(f"{rival.reference} is not measured: {error}; {rival.source}")
        value, ours = rival.published_gb, unpacked_bytes if rival.unpacked else pulled_bytes
        how = f"{'unpacked' if rival.unpacked else 'compressed'}, published {rival.published}"
    return Row(name=f"beside {rival.name}, {how}", ours=ours / GB, unit="GB", rival=rival.name, rival_value=value)
