"""Is the image of another architecture what it says? Run under the emulator of this machine, where one was built.

`IMAGE_ARCH=arm64 nightjar-ci images build base` makes it (half an hour on two cores under QEMU, most of it the ground
floor), which is too long for a test.
"""

import json
from pathlib import Path

import pytest
from docker.client import DockerClient

from tests.docker.conftest import list_tags

pytestmark = pytest.mark.docker

TAG = "nightjar/base:cpu-arm64"
JAX = "nightjar/jax:cpu-arm64"
ASK = "import json, os, platform, sys; print(json.dumps([platform.machine(), os.getuid(), sys.prefix]))"


def check_emulated(client: DockerClient, tag: str) -> str:
    if tag not in list_tags(client):
        name = tag.partition(":")[0].removeprefix("nightjar/")
        pytest.skip(f"{tag} is not built: IMAGE_ARCH=arm64 nightjar-ci images build {name}")
    if client.info()["Architecture"] != "aarch64" and not Path("/proc/sys/fs/binfmt_misc/qemu-aarch64").exists():
        pytest.skip("no emulator of arm64: apt-get install qemu-user-static binfmt-support")
    return tag


def test_jax_computes_in_the_image_of_arm64(client: DockerClient) -> None:
    code = (
        "import jax, flax.nnx; print(jax.devices()[0].platform, jax.jit(lambda x: x @ x)(jax.numpy.ones((8, 8))).sum())"
    )
    options = {"network_mode": "none", "remove": True, "platform": "linux/arm64"}
    printed = client.containers.run(check_emulated(client, JAX), ["python", "-c", code], **options)
    assert printed.decode().split() == ["cpu", "512.0"]


def test_the_base_image_of_arm64_runs_python_and_the_doctor(client: DockerClient) -> None:
    emulated = check_emulated(client, TAG)
    described = client.images.get(emulated).attrs
    assert described["Architecture"] == "arm64"
    options = {"network_mode": "none", "remove": True, "platform": "linux/arm64", "read_only": True}
    said = client.containers.run(emulated, ["python", "-c", ASK], **options)
    assert json.loads(said) == ["aarch64", 10001, "/opt/nightjar"]
    report = client.containers.run(emulated, ["sh", "-c", "nightjar-doctor --json || true"], **options)
    assert json.loads(report)["facts"]["platform"] == "linux-aarch64"
