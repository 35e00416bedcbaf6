"""The tree is written once: whatever lists images or locks elsewhere says the same; built again, nothing changes."""

import json
import os
import re
import tomllib

import pytest

from nightjar_ci.images.build import build_images
from nightjar_ci.images.lock.locks import FOLDER, list_locks
from nightjar_ci.images.tree import TREE_FILE, Image, find_flavors, read_tree, render_bake
from nightjar_ci.tools import run_captured
from tests.docker.conftest import CHECKOUT, find_flavor
from tests.docker.test_guests import IMAGES as GUESTS
from tests.docker.test_jax import LOCKS, locked_versions
from tests.repo.image_tree import render_tree

pytestmark = pytest.mark.buildx
ARCHS = ("amd64", "arm64")
SHARED = ("jax", "jaxlib", "numpy", "ml-dtypes")


@pytest.fixture
def images() -> tuple[Image, ...]:
    return read_tree(CHECKOUT)


def test_each_image_has_its_dockerfile_and_its_tests() -> None:
    images = read_whole_tree()
    names = {image.name for image in images}
    dockerfiles = {path for path in (CHECKOUT / "docker").glob("Dockerfile.*") if path.suffix != ".dockerignore"}
    assert {path.suffix[1:] for path in dockerfiles} - {"tools", "guest"} == names - set(GUESTS)
    tests = {path.stem.removeprefix("test_") for path in (CHECKOUT / "tests/docker").glob("test_*.py")}
    assert names <= tests | set(GUESTS)
    assert names - {"base", "cuda", "source"} == set(LOCKS) | set(GUESTS)


def read_whole_tree() -> tuple[Image, ...]:
    return read_tree(CHECKOUT, "cuda12")


def test_the_listed_tree_is_that_of_the_bake_file() -> None:
    listed = (CHECKOUT / TREE_FILE).read_text()
    assert listed == render_tree(CHECKOUT), "python -m tests.repo.image_tree"


def test_docs_list_the_images_of_the_tree() -> None:
    text = (CHECKOUT / "docs/images.md").read_text()
    listed = re.findall(r"^\| `(nightjar/\S+)` \|", text, re.MULTILINE)
    assert sorted(listed) == sorted(image.tag.partition(":")[0] for image in read_whole_tree())


def test_every_lock_file_is_in_the_table_of_locks() -> None:
    assert {lock.path for lock in list_locks(CHECKOUT)} == {
        str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / FOLDER).rglob("*.txt")
    }


@pytest.mark.parametrize("guest", GUESTS)
@pytest.mark.parametrize("python", ["3.12.0", "3.13.0"])
def test_a_guest_wants_the_jax_of_the_jax_image(guest: str, python: str) -> None:
    jax = locked_versions("jax-cpu", python, "x86_64")
    wanted = locked_versions(GUESTS[guest], python, "x86_64")
    assert {name: wanted.get(name) for name in SHARED} == {name: jax[name] for name in SHARED}


@pytest.mark.parametrize("flavor", find_flavors(CHECKOUT))
def test_every_flavor_is_the_same_tree_with_another_lock(images: tuple[Image, ...], flavor: str) -> None:
    renamed = {image.tag.replace(":cpu", f":{flavor}") for image in images}
    more = set() if flavor == "cpu" else {f"nightjar/{name}:{flavor}" for name in ("cuda", "te", "dali")}
    assert {image.tag for image in read_tree(CHECKOUT, flavor)} == renamed | more


def test_every_image_of_every_flavor_has_a_budget_and_nothing_else_has(images: tuple[Image, ...]) -> None:
    budgets = tomllib.loads((CHECKOUT / "docker/budgets.toml").read_text())["size_mb"]
    named = {f"{image.name}-{flavor}" for flavor in find_flavors(CHECKOUT) for image in read_tree(CHECKOUT, flavor)}
    assert set(budgets) == named


def test_the_matrix_holds_every_flavor_python_and_architecture() -> None:
    command = render_bake(["jax_cells"], options=["--print"])
    printed = run_captured(command.argv, cwd=CHECKOUT, variables=command.variables)
    targets = json.loads(printed)["target"]
    flavors = find_flavors(CHECKOUT)
    cells = {f"jax-{flavor}-py{python}-{arch}" for flavor in flavors for python in ("312", "313") for arch in ARCHS}
    assert cells == {name for name in targets if name.startswith("jax-")}
    assert targets["jax-cuda13-py312-arm64"]["platforms"] == ["linux/arm64"]
    assert targets["jax-cuda13-py312-arm64"]["tags"] == ["nightjar/jax:cuda13-py312-arm64"]
    assert targets["jax-cpu-py313-amd64"]["contexts"]["below"] == "target:base-cpu-py313-amd64"
    assert targets["jax-cuda12-py313-amd64"]["contexts"]["below"] == "target:cuda-cuda12-py313-amd64"


@pytest.mark.parametrize(
    ("base", "source"),
    [
        ("nvcr.io/nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04", "image"),
        ("nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04", "image"),
        ("mirror.example:5000/proxy/nvidia/cuda:13.0.1-cudnn-devel-ubuntu24.04", "image"),
        ("ghcr.io/not-nvidia/cuda:13", "wheels"),
        ("debian:trixie-slim", "wheels"),
    ],
)
def test_cuda_comes_from_nvidias_image_where_one_is_the_base(base: str, source: str) -> None:
    command = render_bake(["cuda"], flavor="cuda13", options=["--print"])
    printed = run_captured(command.argv, cwd=CHECKOUT, variables={**command.variables, "BASE_IMAGE": base})
    targets = json.loads(printed)["target"]
    assert targets["cuda-cuda13-py313-amd64"]["args"]["CUDA"] == source
    assert targets["base-cuda13-py313-amd64"]["args"]["BASE_IMAGE"] == base


@pytest.mark.parametrize(
    ("archive", "base", "day"),
    [
        ("http://archive.example", "debian:trixie", "20261119T000000Z"),
        ("http://archive.example", "ubuntu:24.04", ""),
        ("", "debian:trixie", ""),
    ],
)
def test_the_label_names_the_day_of_the_packages_where_an_archive_has_it(archive: str, base: str, day: str) -> None:
    command = render_bake(["jax"], options=["--print"])
    asked = {"BASE_IMAGE": base, "DEBIAN_SNAPSHOT": archive, "DEBIAN_DAY": "20261119T000000Z"}
    printed = run_captured(command.argv, cwd=CHECKOUT, variables={**command.variables, **asked})
    targets = json.loads(printed)["target"]
    assert {target["labels"]["nightjar.debian"] for target in targets.values() if "labels" in target} == {day}


def test_building_again_changes_nothing_and_takes_seconds(tree: tuple[Image, ...]) -> None:
    first, second = (
        build_images(CHECKOUT, tree, flavor=find_flavor(tree[0]), environ=os.environ, on_step=lambda step: None)
        for _ in range(2)
    )
    assert second.images == first.images
    assert second.duration_s < 30  # 0.6 s on two quiet cores
