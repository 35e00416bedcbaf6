"""The tree is written once: whatever lists images or locks elsewhere says the same; built again, nothing changes."""

from __future__ import annotations

import os
import re

import pytest

from nightjar_ci.images.build import build_images
from nightjar_ci.images.locks import FOLDER, list_locks
from nightjar_ci.images.process import ToolError
from nightjar_ci.images.tree import Image, find_flavors, read_tree
from tests.docker.conftest import CHECKOUT
from tests.docker.test_jax import LOCKS

pytestmark = pytest.mark.docker


@pytest.fixture
def images() -> tuple[Image, ...]:
    try:
        return read_tree(CHECKOUT)
    except ToolError as error:
        pytest.skip(error.message)


def test_each_image_has_its_dockerfile_and_its_tests(images: tuple[Image, ...]) -> None:
    names = {image.name for image in images}
    assert {
        path.suffix[1:] for path in (CHECKOUT / "docker").glob("Dockerfile.*") if path.suffix != ".dockerignore"
    } == names
    tests = {path.stem.removeprefix("test_") for path in (CHECKOUT / "tests/docker").glob("test_*.py")}
    assert names <= tests
    assert {image.name for image in images if image.name != "base"} == set(LOCKS)


def test_docs_list_the_images_of_the_tree(images: tuple[Image, ...]) -> None:
    text = (CHECKOUT / "docs/images.md").read_text()
    assert re.findall(r"^\| `(nightjar/\S+)` \|", text, re.MULTILINE) == [image.tag for image in images]


def test_every_lock_file_is_in_the_table_of_locks() -> None:
    assert {lock.path for lock in list_locks(CHECKOUT)} == {
        f"{FOLDER}/{p.name}" for p in (CHECKOUT / FOLDER).glob("*.txt")
    }


@pytest.mark.parametrize("flavor", find_flavors(CHECKOUT))
def test_every_flavor_is_the_same_tree_with_another_lock(images: tuple[Image, ...], flavor: str) -> None:
    renamed = [image.tag.replace(":cpu", f":{flavor}") for image in images]
    assert [image.tag for image in read_tree(CHECKOUT, flavor)] == renamed


def test_building_again_changes_nothing_and_takes_seconds(tree: tuple[Image, ...]) -> None:
    first, second = (
        build_images(CHECKOUT, tree, flavor=tree[0].tag.split(":")[1], environ=os.environ, on_step=lambda step: None)
        for _ in range(2)
    )
    assert second.images == first.images
    assert second.duration_s < 30  # 0.6 s on two quiet cores
