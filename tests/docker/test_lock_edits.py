"""What does an edit of a lock rebuild? What it changes, and nothing else: real builds of the jax image for CUDA 12.

Its packages are small wheels with the names of the real ones, so that each lies in its own layer; the stages below them
come from the cache of the images under test.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker.client import DockerClient

from nightjar_ci.images.build import BuiltImage, build_images
from nightjar_ci.images.tree import Image
from tests.docker.conftest import Runner, rename_image
from tests.docker.package_index import fill, serve_index

pytestmark = [pytest.mark.docker, pytest.mark.slow]

NAMES = ("nvidia-cuda-runtime-cu12", "nvidia-cublas-cu12", "nvidia-cudnn-cu12", "nvidia-nccl-cu12", "jaxlib", "flax")
LOCK = "docker/locks/jax-cuda12.txt"


@pytest.fixture
def index(bridge: str, tmp_path: Path, checkout: Path) -> Iterator[str]:
    """An index with 1.0 and 2.0 of each package; the copy is locked to 1.0, with the hashes of both."""
    digests = fill(tmp_path / "index", *(f"{name}=={version}" for name in NAMES for version in ("1.0", "2.0")))
    lines = [
        f"{name}==1.0 \\\n    --hash=sha256:{digests[f'{name}==1.0']} \\\n    --hash=sha256:{digests[f'{name}==2.0']}\n"
        for name in NAMES
    ]
    (checkout / LOCK).write_text("".join(lines))
    with serve_index(tmp_path / "index", bridge) as address:
        yield address


def build(checkout: Path, image: Image, index: str, steps: list[str]) -> BuiltImage:
    environ = {"UV_DEFAULT_INDEX": index}
    return build_images(checkout, [image], flavor="cuda12", environ=environ, on_step=steps.append).images[0]


@pytest.mark.weekly
def test_an_edit_of_one_character_changes_the_layer_of_its_package_though_size_and_time_of_the_lock_stay(
    client: DockerClient, checkout: Path, tree: tuple[Image, ...], index: str
) -> None:
    image, lock = rename_image(tree, "jax", "cuda12"), checkout / LOCK
    # More than once: a build beside this one may have replaced what the engine held.
    for old, new in (("1.0", "2.0"), ("2.0", "1.0")) * 2:
        steps: list[str] = []
        then = build(checkout, image, index, steps)
        time = lock.stat().st_mtime_ns
        lock.write_text(lock.read_text().replace(f"nvidia-cudnn-cu12=={old}", f"nvidia-cudnn-cu12=={new}"))
        os.utime(lock, ns=(time, time))
        now = build(checkout, image, index, steps)
        if any("the engine cached an older copy of the same size and time" in step for step in steps):
            break
    else:
        pytest.fail("the engine never held the older lock")
    assert len(now.layers) == len(then.layers)
    assert sum(new != old for new, old in zip(now.layers, then.layers, strict=True)) == 1
    folders = Runner(client, image)("sh", "-c", "ls -d /opt/nightjar/lib/*/site-packages/*-info").split()
    versions = dict(Path(folder).name.removesuffix(".dist-info").split("-") for folder in folders)
    assert {"pip", "uv"} <= set(versions)  # those of the base image, whatever their versions
    del versions["pip"], versions["uv"]
    assert versions.pop("nvidia_cudnn_cu12") == new
    assert set(versions.values()) == {"1.0"}
    assert len(versions) == len(NAMES) - 1
