"""What stands on an image of NVIDIA? A local one with CUDA's layout, from a registry on loopback, for real."""

import io
import os
from pathlib import Path

import pytest
from docker.client import DockerClient

from nightjar_ci.images.build import build_images
from nightjar_ci.images.tree import Image
from nightjar_ci.web.registry import Repository
from tests.ci.registries import make_tar, run_registry
from tests.docker.conftest import Runner

pytestmark = [pytest.mark.docker, pytest.mark.registry, pytest.mark.slow]

LIBRARY = "usr/local/cuda/lib64/libcudart.so.12"


def push_base(client: DockerClient, floor: str, reference: str) -> str:
    """Pushes the ground floor with a CUDA library as an image that the engine then has no more; returns its digest."""
    container = client.containers.create(floor, "true")
    try:
        container.put_archive("/", io.BytesIO(make_tar({LIBRARY: "of the image"})))
        name, _, tag = reference.rpartition(":")
        container.commit(name, tag)
    finally:
        container.remove()
    client.images.push(reference)
    client.images.remove(reference)
    return Repository(name).digest(tag)


@pytest.mark.weekly
def test_on_an_image_of_nvidia_its_cuda_stays_and_no_wheel_is_put_beside_it(
    client: DockerClient, checkout: Path, tree: tuple[Image, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_registry(tmp_path / "registry") as registry:
        base = f"{registry.host}/nvidia/cuda:12"
        digest = push_base(client, tree[0].base, base)
        monkeypatch.setenv("BASE_IMAGE", base)
        tag = f"nightjar-test{os.getpid()}/cuda:cuda12"
        image = Image(name="cuda", tag=tag, parent=None, base=base, description="")
        try:
            build_images(checkout, [image], flavor="cuda12", environ=os.environ, on_step=lambda step: None)
        finally:
            client.images.remove(base)
    labels = client.images.get(tag).labels
    assert labels["org.opencontainers.image.base.name"] == base
    assert labels["org.opencontainers.image.base.digest"] == digest
    run = Runner(client, image)
    assert run("cat", f"/{LIBRARY}") == "of the image"
    assert run("id", "-u").strip() == "10001"
    assert run("find", "/opt/nightjar/lib", "-name", "nvidia*") == ""
