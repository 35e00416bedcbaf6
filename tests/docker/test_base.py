"""What every image of the tree is: small in rights, free of leftovers, and labelled."""

import json
import os
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata

import pytest
from docker.client import DockerClient

from nightjar_ci.images.build import ROOT_FILESYSTEM, find_revision, find_source
from nightjar_ci.images.origins import describe_base
from nightjar_ci.images.tested import STARTS
from nightjar_ci.images.tree import Image
from tests.docker.conftest import CHECKOUT, Runner, find_flavor
from tests.docker.faults import find_oversize

pytestmark = pytest.mark.docker

WORK_VARIABLES = {"HOME", "USER", "VIRTUAL_ENV", "UV_NO_CACHE"}  # for whoever adds packages
MORE_VARIABLES = {"te": {"CUDA_HOME"}}  # where TransformerEngine looks for CUDA
# Enroot gives no GPU without the first two; the third refuses old drivers.
GPU_VARIABLES = {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_CUDA"}


def os_packages() -> list[str]:
    lines = (CHECKOUT / "docker/os-packages.txt").read_text().splitlines()
    return [line.split()[0] for line in lines if line and not line.startswith("#")]


def test_image_runs_as_a_numbered_user_that_is_not_root(run: Runner, client: DockerClient, image: Image) -> None:
    user = client.images.get(image.tag).attrs["Config"]["User"].split(":")[0]
    assert run("id", "-u").strip() == user
    assert int(user) > 0


def test_image_runs_as_any_user_with_a_read_only_root(run: Runner, prove: Callable[[str], None]) -> None:
    code = "import getpass, os, ssl, venv; print(os.getuid(), getpass.getuser())"
    assert run("python3", "-c", code, user="54321:54321", read_only=True).split() == ["54321", "nightjar"]
    prove(STARTS)


def test_a_login_shell_has_the_environment(run: Runner) -> None:
    assert run("bash", "-lc", "command -v python").strip() == "/opt/nightjar/bin/python"
    assert run("bash", "-lc", "bash -lc 'echo $PATH'").count("/opt/nightjar/bin") == 1


def test_image_has_every_package_of_the_list(run: Runner) -> None:
    status = run("dpkg-query", "--show", "--showformat", "${db:Status-Abbrev}\n", *os_packages()).split()
    assert status == ["ii"] * len(os_packages())


def test_image_lacks_no_update_of_its_day(run: Runner, image: Image) -> None:
    if not image.base.startswith(ROOT_FILESYSTEM):
        pytest.skip("the base is another's, whose updates are its own")
    pins = json.loads((CHECKOUT / "docker/versions.json").read_text())["variable"]
    environment = {
        "DEBIAN_SNAPSHOT": os.environ.get("DEBIAN_SNAPSHOT", ""),
        "DEBIAN_DAY": pins["DEBIAN_DAY"]["default"],
    }
    script = (CHECKOUT / "docker/apt-day.sh").read_text()
    apt = 'day=$(bash -c "$0") && apt-get -qq $day update && apt-get -qq $day --just-print upgrade'
    said = run("bash", "-c", apt, script, user="0", network_mode="bridge", environment=environment)
    updates = [line for line in said.splitlines() if line.startswith("Inst ")]
    assert updates == [], "docker/ground-floor.sh --force makes the ground floor with the updates of today"


def test_image_has_what_people_work_with(run: Runner) -> None:
    for command in ("uv", "pip", "git", "less", "ps"):
        assert run(command, "--version", user="54321:54321", read_only=True)
    assert run("sh", "-c", "echo $HOME && test -w $HOME && test -w /workspace && test -w /data", user="1000").strip()


def test_every_package_of_debian_keeps_its_licence(run: Runner) -> None:
    script = "for p in $(dpkg-query -Wf '${Package}\\n'); do test -e /usr/share/doc/$p/copyright || echo $p; done"
    assert run("sh", "-c", script).split() == []


def test_the_doctor_says_what_is_absent_and_warns_of_a_small_dev_shm(run: Runner, image: Image) -> None:
    options = {"user": "54321:54321", "read_only": True, "tmpfs": {"/tmp": "rw,mode=1777"}}
    # te's import wants the driver's library, so the doctor may end with 1 there: its page is what is looked at
    page = run("sh", "-c", "nightjar-doctor || test $? = 1", shm_size="16m", **options)
    lines = page.splitlines()
    assert "/dev/shm has 16 MiB: NCCL and data loaders may end with a bus error." in page
    assert "fix: docker run --shm-size=1g" in page
    assert ("JAX        not installed" in lines) == (image.name in ("base", "cuda"))
    assert ("TE         not installed" in lines) == (image.name != "te")
    assert ("DALI       not installed" in lines) == (image.name != "dali")
    assert ("CUDA       no wheels installed" in lines) == ("cuda" not in image.tag or image.name == "base")
    if image.name == "base":  # no JAX has to start
        assert "bus error" not in run("sh", "-c", "nightjar-doctor || test $? = 1", shm_size="1g")


def test_nsight_systems_leaves_a_report_that_it_exports(run: Runner) -> None:
    if not run("sh", "-c", "command -v nsys || true"):
        pytest.skip("the image was built without NSYS=debian")
    commands = "nsys profile --trace nvtx --output x true && nsys export --type sqlite --output x.sqlite x.nsys-rep"
    said = run("sh", "-c", f"cd /tmp && ({commands}) >/dev/null && head -c 15 x.sqlite")
    assert said == "SQLite format 3"


def find_version(run: Runner, name: str) -> str:
    """The version of what an image is named after, of the image itself."""
    packages = {"te": "transformer-engine", "cuda": "nvidia-cuda-runtime", "dali": "nvidia-dali-cuda", "devel": "jax"}
    packages |= {"tunix": "google-tunix"} | {name: name for name in ("jax", "equinox", "levanter", "maxtext")}
    if name not in packages:
        return metadata.version("nightjar-ci")
    code = "import sys; from importlib.metadata import distributions as ds; d = {d.name: d.version for d in ds()}\n"
    code += "print(next(d[name] for name in sorted(d) if name.replace('_', '-').startswith(sys.argv[1])))"
    return run("python", "-c", code, packages[name]).strip()


def test_labels_name_the_image_its_commit_and_its_base(client: DockerClient, image: Image, run: Runner) -> None:
    config = client.images.get(image.tag).attrs
    labels = config["Config"]["Labels"]
    assert labels["org.opencontainers.image.title"] == image.tag.split(":")[0]
    assert labels["org.opencontainers.image.base.name"] == image.base
    below = client.images.get(image.base).attrs
    named = describe_base(image.base, below)
    assert labels["org.opencontainers.image.base.digest"] == named["BASE_DIGEST"]
    assert labels["nightjar.base.layers"] == named["BASE_LAYERS"]
    assert any(named.values())
    layers = config["RootFS"]["Layers"]
    assert layers[: len(below["RootFS"]["Layers"])] == below["RootFS"]["Layers"]
    assert labels["org.opencontainers.image.version"] == find_version(run, image.name)
    assert labels["org.opencontainers.image.revision"] == find_revision(CHECKOUT)
    assert labels["org.opencontainers.image.source"] == find_source(CHECKOUT)
    assert labels["nightjar.flavor"] == find_flavor(image)


def test_image_bears_the_pinned_date_not_that_of_its_build(client: DockerClient, image: Image, run: Runner) -> None:
    pins = json.loads((CHECKOUT / "docker/versions.json").read_text())["variable"]
    built = client.images.get(image.tag).attrs
    expected = datetime.fromtimestamp(int(pins["SOURCE_DATE_EPOCH"]["default"]), UTC)
    if day := built["Config"]["Labels"]["nightjar.jax.day"]:  # of a nightly JAX
        expected = datetime.fromisoformat(day).replace(tzinfo=UTC)
    assert datetime.fromisoformat(built["Created"]) == expected


def test_image_has_no_variable_that_says_how_it_was_built(client: DockerClient, image: Image, run: Runner) -> None:
    variables = {
        name for name, _, _ in (line.partition("=") for line in client.images.get(image.tag).attrs["Config"]["Env"])
    }
    gpu = GPU_VARIABLES if "cuda" in image.tag and image.name != "base" else set()
    assert variables == {"PATH", "LANG"} | WORK_VARIABLES | MORE_VARIABLES.get(image.name, set()) | gpu


def test_links_lead_somewhere(run: Runner) -> None:
    assert run("find", "/usr", "/opt", "/etc", "/home", "-xdev", "-xtype", "l", user="0").split() == []


def test_image_keeps_within_its_budget(client: DockerClient, image: Image, run: Runner) -> None:
    budgets = tomllib.loads((CHECKOUT / "docker/budgets.toml").read_text())
    size = client.images.get(image.tag).attrs["Size"]
    if run("sh", "-c", "command -v nsys || true"):
        size -= budgets["more_mb"]["nsys"] * 1e6
    assert find_oversize(size, budgets["size_mb"], image.name, find_flavor(image)) == []
