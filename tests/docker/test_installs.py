"""Work in the images: any user adds packages, in a Dockerfile and at run time; servers and volumes are usable."""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from docker.client import DockerClient

from nightjar_ci.images.build import open_secrets
from nightjar_ci.images.tree import Image, find_architecture
from nightjar_ci.tools import run_captured
from tests.ci.jax_nightly.wheels import serve
from tests.docker.conftest import Runner
from tests.docker.package_index import fill

pytestmark = pytest.mark.docker

USERS = ("", "1000", "1000:1000", "54321:54321", "0")
PROJECT = """
[project]
name = "app"
version = "1.0"
requires-python = ">=3.12"
dependencies = ["einops==1.0"]
"""


@pytest.fixture
def jax(client: DockerClient, tree: tuple[Image, ...]) -> Runner:
    image = {image.name: image for image in tree}.get("jax")
    if image is None:
        pytest.skip("the jax image is not under test")
    return Runner(client, image)


@pytest.fixture
def options(bridge: str, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Options of containers that see an index with einops 1.0 and 2.0."""
    fill(tmp_path / "index", "einops==1.0", "einops==2.0", "toolz==1.0")
    with serve(tmp_path / "index", bridge) as address:
        variables = {"PIP_INDEX_URL": address, "PIP_TRUSTED_HOST": bridge, "UV_DEFAULT_INDEX": address}
        yield {"network_mode": "bridge", "environment": variables}


@pytest.mark.parametrize("user", USERS)
def test_any_user_adds_packages_with_pip_and_with_uv(jax: Runner, options: Mapping[str, Any], user: str) -> None:
    script = (
        "pip install --quiet einops==1.0 && uv pip install --quiet toolz && uv pip install --quiet --upgrade einops"
    )
    show = 'python -c "import einops, toolz, jax; print(einops.__file__)" && pip show einops | grep Version'
    printed = jax("sh", "-c", f"{script} && {show}", user=user, **options)
    assert printed.split() == [*printed.split()[:1], "Version:", "2.0"]
    assert printed.startswith("/opt/nightjar/lib/")


def test_the_images_own_user_replaces_a_package_of_the_image(jax: Runner, options: Mapping[str, Any]) -> None:
    command = "pip uninstall --quiet --yes optax && pip install --quiet --no-deps einops && pip show --quiet optax"
    assert jax("sh", "-c", f"{command} || echo gone", **options).split()[-1] == "gone"


def test_an_environment_on_top_sees_jax_and_takes_other_versions(jax: Runner, options: Mapping[str, Any]) -> None:
    make = "python -m venv --system-site-packages ~/env && ~/env/bin/pip install --quiet einops==1.0"
    show = "import einops, jax; print(einops.__file__.split('/')[3], jax.__file__.split('/')[2])"
    assert jax("sh", "-c", f'{make} && ~/env/bin/python -c "{show}"', user="1000", **options).split() == [
        "env",
        "nightjar",
    ]


def test_python_brings_pip_into_an_environment_without_an_index(jax: Runner) -> None:
    assert "pip" in jax("sh", "-c", "python -m venv ~/env && ~/env/bin/python -m ensurepip && ~/env/bin/pip --version")


def test_a_mounted_project_is_installed_by_its_owner(jax: Runner, options: Mapping[str, Any], tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(PROJECT)
    os.chown(project, 1000, 1000)
    mounted = {
        **options,
        "volumes": {str(project): {"bind": "/project"}},
        "working_dir": "/project",
        "user": "1000:1000",
    }
    printed = jax("sh", "-c", "uv sync --quiet && uv run python -c 'import einops; print(einops.__file__)'", **mounted)
    assert printed.startswith("/project/.venv/")
    assert (project / "uv.lock").stat().st_uid == 1000
    assert jax("git", "init", "--quiet", **mounted) == ""
    assert "No commits yet" in jax("git", "status", **{**mounted, "user": "54321"})  # a checkout of somebody else's


def test_a_read_only_container_installs_into_a_tmpfs(jax: Runner, options: Mapping[str, Any]) -> None:
    folders = {"/tmp": "rw,mode=1777", "/home/nightjar": "rw,exec,mode=1777"}
    script = "uv venv --quiet --system-site-packages ~/env && . ~/env/bin/activate && uv pip install --quiet einops"
    script += " && python -c 'import einops, jax; print(einops.__file__)'"
    printed = jax("sh", "-c", script, read_only=True, tmpfs=folders, user="1000:1000", **options)
    assert printed.startswith("/home/nightjar/env/")


def test_a_new_volume_in_a_folder_of_the_image_is_writable_by_all(jax: Runner, client: DockerClient) -> None:
    for path in ("/data", "/workspace", "/home/nightjar", "/home/nightjar/.cache"):
        volume = client.volumes.create()
        try:
            mounts = {volume.name: {"bind": path}}
            jax("touch", f"{path}/of-1000", user="1000:1000", volumes=mounts)
            assert "of-1000" in jax("sh", "-c", f"touch {path}/own && ls {path}", volumes=mounts)
        finally:
            volume.remove()


def test_a_package_in_a_dockerfile_is_one_layer_more_and_small(
    jax: Runner, client: DockerClient, options: Mapping[str, Any], tmp_path: Path
) -> None:
    tag = f"nightjar-test{os.getpid()}/app"
    arguments = [f"--build-arg={name}={value}" for name, value in options["environment"].items()]
    names = "".join(f"ARG {name}\n" for name in options["environment"])
    (tmp_path / "Dockerfile").write_text(f"FROM {jax.image.tag}\n{names}RUN pip install --quiet einops==1.0\n")
    build_image(tag, tmp_path, *arguments)
    try:
        below, made = (client.images.get(name).attrs for name in (jax.image.tag, tag))
        layers = made["RootFS"]["Layers"]
        assert layers[:-1] == below["RootFS"]["Layers"]
        assert made["Size"] - below["Size"] < 100_000
        app = Runner(client, Image(name="app", tag=tag, parent=None, base="", description=""))
        assert app("python", "-c", "import einops, jax; print('ok')", user="1000") == "ok\n"
        assert app("sh", "-c", "ls -A ~/.cache").split() == []
    finally:
        client.images.remove(tag, force=True)


def test_a_running_container_is_entered_with_the_environment(jax: Runner, client: DockerClient) -> None:
    container = client.containers.run(jax.image.tag, ["sleep", "60"], detach=True, network_mode="none", user="1000")
    try:
        status, printed = container.exec_run(["sh", "-c", "echo $HOME $VIRTUAL_ENV; which python pip uv; ps -e"])
        assert status == 0
        assert printed.decode().split()[:2] == ["/home/nightjar", "/opt/nightjar"]
        assert [f"/opt/nightjar/bin/{name}" for name in ("python", "pip", "uv")] == printed.decode().split()[2:5]
        assert b"sleep" in printed
    finally:
        container.remove(force=True)


def test_an_editor_takes_the_image_and_gives_its_user_the_uid_of_the_machine(
    jax: Runner, client: DockerClient, options: Mapping[str, Any], tmp_path: Path
) -> None:
    """What the tools of development containers do with `remoteUser`: its uid becomes that of the checkout's owner."""
    tag = f"nightjar-test{os.getpid()}/editor"
    change = (
        "sed -i -E 's/^(nightjar:x:)[0-9]+:[0-9]+:/\\11000:1000:/' /etc/passwd && chown -R 1000:1000 /home/nightjar"
    )
    (tmp_path / "Dockerfile").write_text(f"FROM {jax.image.tag}\nUSER root\nRUN {change}\nUSER nightjar\n")
    build_image(tag, tmp_path)
    try:
        editor = Runner(client, Image(name="editor", tag=tag, parent=None, base="", description=""))
        script = "id -u && pip install --quiet einops==1.0 && python -c 'import einops, jax' && touch ~/.vscode-server"
        assert editor("sh", "-c", script, **options) == "1000\n"
    finally:
        client.images.remove(tag, force=True)


@pytest.mark.slow
def test_jupyter_is_installed_and_answers_on_a_port(jax: Runner, client: DockerClient) -> None:
    serve = "jupyter server --ip 0.0.0.0 --port 8888 --ServerApp.token= --ServerApp.password="
    script = f". /run/secrets/index; uv pip install --quiet jupyter-server ipykernel && exec {serve}"
    with open_secrets(os.environ) as secrets:
        volumes = {str(path.resolve()): {"bind": f"/run/secrets/{id_}", "mode": "ro"} for id_, path in secrets.items()}
        secrets["index"].chmod(0o644)
        secrets["index"].parent.chmod(0o755)
        ports: dict[str, Any] = {"8888/tcp": ("127.0.0.1", None)}
        command = ["sh", "-c", script]
        container = client.containers.run(
            jax.image.tag, command, detach=True, user="1000", volumes=volumes, ports=ports
        )
        try:
            port = wait_for_port(client, container.id)
            assert "version" in wait_for_page(f"http://127.0.0.1:{port}/api")
        finally:
            container.remove(force=True)


def build_image(tag: str, folder: Path, *options: str) -> None:
    platform = f"--platform=linux/{os.environ.get('IMAGE_ARCH') or find_architecture()}"
    argv = ["docker", "buildx", "build", "--load", platform, "--tag", tag, *options, "--file", f"{folder}/Dockerfile"]
    run_captured([*argv, str(folder / "index")])


def wait_for_port(client: DockerClient, container: str) -> str:
    for _ in range(100):
        ports = client.api.inspect_container(container)["NetworkSettings"]["Ports"].get("8888/tcp")
        if ports:
            return str(ports[0]["HostPort"])
        time.sleep(0.1)
    raise AssertionError("the engine gave no port")


def wait_for_page(address: str) -> dict[str, Any]:
    for _ in range(300):
        try:
            with urllib.request.urlopen(address) as page:
                document: dict[str, Any] = json.load(page)
                return document
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise AssertionError(f"{address} does not answer")
