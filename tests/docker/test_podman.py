"""Do other engines run the images? Podman, from an OCI layout that skopeo made; its libraries read it for CRI-O too.

Apptainer reads a layout with the libraries of skopeo and umoci (`test_layers.py` unpacks one with them).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker.client import DockerClient

from nightjar_ci.images.process import run_captured
from nightjar_ci.images.tree import Image
from tests.docker.conftest import copy_to_layout, get_flavor

pytestmark = [pytest.mark.docker, pytest.mark.slow]

Podman = Callable[..., str]
# A machine that is itself a container or a small virtual machine lets nobody raise limits, as podman does.
LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
IMPORTS = "import jax, nightjar_models; print(jax.numpy.arange(4).sum(), jax.default_backend())"


@pytest.fixture
def podman(tmp_path: Path) -> Iterator[Podman]:
    """Podman with a store of its own, which is removed."""
    if missing := [program for program in ("podman", "skopeo", "runc") if shutil.which(program) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}: nox -s system")
    if os.getuid() != 0:
        pytest.skip("without root, podman wants subordinate user ids that not every machine gives")
    state = Path(tempfile.mkdtemp(prefix="podman-"))  # podman takes no path of more than 50 characters
    store = ["--root", str(tmp_path / "store"), "--runroot", str(state), "--storage-driver", "overlay"]
    store += ["--runtime", "runc", "--cgroup-manager", "cgroupfs", "--events-backend", "none"]

    def run(*arguments: str) -> str:
        return run_captured(["podman", *store, *arguments])

    yield run
    run("image", "rm", "--all", "--force")
    mounts = Path("/proc/mounts").read_text().split()
    for folder in sorted({mount for mount in mounts if mount.startswith((str(tmp_path), str(state)))}, reverse=True):
        run_captured(["umount", folder])
    shutil.rmtree(state)


def test_the_models_image_is_an_oci_layout_in_which_podman_runs_jax(
    client: DockerClient, tree: tuple[Image, ...], podman: Podman, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    models = [image for image in tree if image.name == "models"]
    if not models or get_flavor(pytestconfig) != "cpu":
        pytest.skip("the models image of the CPU flavour is not under test")
    layout = copy_to_layout(client, models[0], tmp_path, "--dest-decompress")
    pulled = podman("pull", "--quiet", f"oci:{layout}").strip()
    shutil.rmtree(tmp_path / "layout")
    bare = ["run", "--rm", "--network", "none", "--read-only", *LIMITS, pulled]
    assert podman(*bare, "python", "-c", IMPORTS).split() == ["6", "cpu"]
    assert podman(*bare, "id", "-u").strip() == "10001"
