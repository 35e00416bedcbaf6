"""Do other engines run the images, from an OCI layout? Podman, whose libraries CRI-O has too, Apptainer, Enroot."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker.client import DockerClient

from nightjar_ci.images.tree import Image
from nightjar_ci.tools import run_captured
from tests.ci.registries import run_registry
from tests.docker.conftest import copy_to_layout, get_flavor
from tests.machine import asks

pytestmark = [pytest.mark.docker, pytest.mark.slow]

Podman = Callable[..., str]
# A machine that is itself a container or a small virtual machine lets nobody raise limits, as podman does.
LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
IMPORTS = "import jax, nightjar_models; print(jax.numpy.arange(4).sum(), jax.default_backend())"


@pytest.fixture
@asks("podman")
def podman(tmp_path: Path) -> Iterator[Podman]:
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


@pytest.fixture(scope="module")
@asks("skopeo")
def layout(
    client: DockerClient, tree: tuple[Image, ...], pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The models image of the CPU flavour as an OCI layout, `PATH:NAME`."""
    models = [image for image in tree if image.name == "models"]
    if not models or get_flavor(pytestconfig) != "cpu":
        pytest.skip("the models image of the CPU flavour is not under test")
    folder = tmp_path_factory.mktemp("layout")
    yield copy_to_layout(client, models[0], folder, "--dest-decompress")
    shutil.rmtree(folder)


@pytest.mark.weekly
def test_podman_runs_jax_from_the_layout(podman: Podman, layout: str) -> None:
    pulled = podman("pull", "--quiet", f"oci:{layout}").strip()
    bare = ["run", "--rm", "--network", "none", "--read-only", *LIMITS, pulled]
    assert podman(*bare, "python", "-c", IMPORTS).split() == ["6", "cpu"]
    assert podman(*bare, "id", "-u").strip() == "10001"


@pytest.mark.apptainer
def test_apptainer_runs_jax_from_the_layout(layout: str, tmp_path: Path) -> None:
    sandbox = str(tmp_path / "sandbox")
    run_captured(["apptainer", "build", "--disable-cache", "--sandbox", sandbox, f"oci:{layout.rpartition(':')[0]}"])
    alone = ["apptainer", "exec", "--no-privs", "--containall", "--no-home", sandbox]  # nothing of the host
    assert run_captured([*alone, "python", "-c", IMPORTS]).split() == ["6", "cpu"]
    assert run_captured([*alone, "id", "-u"]).strip() == str(os.getuid())  # as Apptainer does everywhere
    shutil.rmtree(sandbox)


@pytest.mark.enroot
@pytest.mark.registry
def test_enroot_runs_jax_from_a_registry(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENROOT_ALLOW_HTTP", "yes")
    for place in ("CACHE", "CONFIG", "DATA", "RUNTIME", "TEMP"):
        (tmp_path / place).mkdir()
        monkeypatch.setenv(f"ENROOT_{place}_PATH", str(tmp_path / place))
    squashed = str(tmp_path / "models.sqsh")
    with run_registry(tmp_path / "registry") as registry:  # it reads no layouts
        pushed = ["--format", "v2s2", "--dest-tls-verify=false", f"oci:{layout}"]
        run_captured(["skopeo", "copy", *pushed, f"docker://{registry.host}/nightjar/models:cpu"])
        run_captured(["enroot", "import", "--output", squashed, f"docker://{registry.host}#nightjar/models:cpu"])
    run_captured(["enroot", "create", "--name", "models", squashed])
    assert run_captured(["enroot", "start", "models", "python", "-c", IMPORTS]).split() == ["6", "cpu"]
    shutil.rmtree(tmp_path)
