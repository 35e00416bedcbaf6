"""Which image does a test run in? The one that its file is named after, and every image built on that one.

`test_base.py` runs in base, jax and models; `test_models.py` in models only: a child passes its parents' tests. A file
for several images names them (`IMAGES`). Images are those of this checkout: what was built before is brought up to date
first; what never was is skipped.
"""

import functools
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.client import DockerClient
from docker.errors import APIError

from nightjar_ci.images.build import build_images
from nightjar_ci.images.tree import DEFAULT_FLAVOR, Image, read_tree, select_images
from nightjar_ci.tools import run_captured
from tests.docker.copies import CHECKOUT as CHECKOUT
from tests.docker.copies import copy_sources
from tests.machine import asks, find_lack, refuse

COPIES = 3  # of an image, at most, while it becomes a layout and is unpacked
SPARED_BYTES = 10_000_000_000  # of the disk, for everybody else
RUNC_CRASH = "waiting for init preliminary setup"  # runc died before it began the command, as happens on a busy machine


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--flavor", default=DEFAULT_FLAVOR, help="flavour of the images")
    parser.addoption(
        "--image", action="append", help="test only this image (repeat); those of the default where absent"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "image" not in metafunc.fixturenames:
        return
    name = metafunc.module.__name__.rpartition("test_")[2]
    names: tuple[str, ...] = getattr(metafunc.module, "IMAGES", (name,))
    wanted = metafunc.config.getoption("--image", None)
    if find_lack("buildx") is not None:  # which is why the test is skipped, as it asks for it
        metafunc.parametrize("image", [pytest.param(None, id=name)])
        return
    tree = read_tree_once(get_flavor(metafunc.config))
    images = [image for image in select_wanted(tree, wanted) if set(names) & set(ancestry(image, tree))]
    if not images:
        reason = f"no image under test has it: nightjar-ci images test {name} (--flavor cuda12)"
        metafunc.parametrize("image", [pytest.param(None, marks=pytest.mark.skip(reason=reason), id=name)])
        return
    metafunc.parametrize("image", images, ids=[image.name for image in images], scope="session")


@pytest.fixture(autouse=True)
def default_cell(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test without an image is of the default cell, whichever `images test` tests."""
    if not {"image", "tree"} & {*request.fixturenames}:
        for name in ("IMAGE_ARCH", "IMAGE_PYTHON"):
            monkeypatch.delenv(name, raising=False)


def find_flavor(image: Image) -> str:
    """The flavour of an image: its tag without Python and architecture."""
    return re.sub(r"(-py\d+)?(-arm64)?$", "", image.tag.partition(":")[2])


@functools.cache
def read_tree_once(flavor: str) -> tuple[Image, ...]:
    """The images of this checkout: 30 tests ask for them, and two processes answer."""
    return read_tree(CHECKOUT, flavor)


def get_flavor(config: pytest.Config) -> str:
    flavor: str = config.getoption("--flavor", DEFAULT_FLAVOR)
    return flavor


def select_wanted(tree: tuple[Image, ...], wanted: list[str] | None) -> tuple[Image, ...]:
    """The images that are named, parents first; those of the default where none is."""
    if not wanted:
        return select_images(tree, None)
    named = {image.name for name in wanted for image in select_images(tree, name)}
    return tuple(image for image in tree if image.name in named)


def ancestry(image: Image, tree: tuple[Image, ...]) -> list[str]:
    parents = {one.name: one.parent for one in tree}
    names, parent = [image.name], image.parent
    while parent is not None:
        names.append(parent)
        parent = parents[parent]
    return names


@pytest.fixture(scope="session")
@asks("docker")
def client() -> Iterator[DockerClient]:
    client = DockerClient.from_env()
    yield client
    client.close()


def list_tags(client: DockerClient) -> set[str]:
    """The tags of all images, in one call: `client.images.list()` asks for each, and another worker may remove it."""
    return {tag for image in client.api.images() for tag in image["RepoTags"] or ()}


@pytest.fixture(scope="session")
def tree(client: DockerClient, pytestconfig: pytest.Config) -> tuple[Image, ...]:
    """The images under test, built: those of the default, or the one asked for."""
    tree = select_wanted(read_tree(CHECKOUT, get_flavor(pytestconfig)), pytestconfig.getoption("--image", None))
    there = list_tags(client)
    missing = [image.tag for image in tree if image.tag not in there]
    if missing:
        refuse(pytestconfig, f"not built: {', '.join(missing)}. Hint: nightjar-ci images build")
    build_images(CHECKOUT, tree, flavor=get_flavor(pytestconfig), environ=os.environ, on_step=lambda step: None)
    return tree


def copy_to_layout(client: DockerClient, image: Image, folder: Path, *options: str) -> str:
    """An image as an OCI layout in a folder, made by skopeo; skips where the disk has no room. Returns `PATH:NAME`."""
    wanted = COPIES * client.images.get(image.tag).attrs["Size"]
    if shutil.disk_usage(folder).free < wanted + SPARED_BYTES:
        pytest.skip(f"{COPIES} copies of {image.tag} are {wanted / 1e9:.0f} GB, and the disk has no room for them")
    archive, layout = folder / "image.tar", f"{folder / 'layout'}:{image.name}"
    run_captured(["docker", "save", "--output", str(archive), image.tag])
    run_captured(["skopeo", "copy", *options, f"docker-archive:{archive}", f"oci:{layout}"])
    archive.unlink()
    return layout


class Runner:
    """Runs commands in containers of one image, without network, and removes the containers."""

    def __init__(self, client: DockerClient, image: Image) -> None:
        self.client = client
        self.image = image

    def __call__(self, *command: str, **options: Any) -> str:
        """What the command wrote to stdout; a `ContainerError` with its stderr where it failed."""
        name = f"nightjar-test-{uuid.uuid4().hex}"
        options = {"network_mode": "none", "remove": True, "name": name, **options}
        try:
            output: bytes = self.client.containers.run(self.image.tag, list(command), **options)
        except APIError as error:
            for unstarted in self.client.containers.list(all=True, filters={"name": name}):
                unstarted.remove(force=True)
            if RUNC_CRASH not in str(error):
                raise
            output = self.client.containers.run(self.image.tag, list(command), **options)
        return output.decode()


@pytest.fixture
def prove(request: pytest.FixtureRequest) -> Callable[[str], None]:
    return lambda did: request.node.user_properties.append(("ran", did))


@pytest.fixture
def run(client: DockerClient, tree: tuple[Image, ...], image: Image) -> Runner:
    return Runner(client, image)


@pytest.fixture
def bridge(client: DockerClient) -> str:
    """The address of this machine on the bridge on which builds run."""
    gateway: str = client.networks.get("bridge").attrs["IPAM"]["Config"][0]["Gateway"]
    return gateway


@pytest.fixture
def checkout(client: DockerClient, tree: tuple[Image, ...], tmp_path: Path) -> Iterator[Path]:
    """A copy of the tree under tags of its own, which are removed."""
    if "nightjar/jax:cpu" not in {image.tag for image in tree}:
        pytest.skip("the jax image of the CPU flavour is not under test: its stages may not be in the cache")
    root = tmp_path / "checkout"
    copy_sources(root)
    bake = root / "docker/docker-bake.hcl"
    bake.write_text(bake.read_text().replace('["nightjar/', f'["nightjar-test{os.getpid()}/'))
    yield root
    for tag in list_tags(client):
        if tag.startswith(f"nightjar-test{os.getpid()}/"):  # the image, and those below it
            client.images.remove(tag)


def rename_image(tree: tuple[Image, ...], name: str, flavor: str) -> Image:
    tag = f"nightjar-test{os.getpid()}/{name}:{flavor}"
    return Image(name=name, tag=tag, parent=None, base=tree[0].base, description="")
