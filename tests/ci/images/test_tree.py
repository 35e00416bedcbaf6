import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.errors import InputError
from nightjar_ci.images.tree import find_checkout, find_flavors, parse_tree, render_bake, select_images

LABELS = {
    "org.opencontainers.image.base.name": "debian:trixie",
    "org.opencontainers.image.description": "what it holds",
}


def bake(parents: dict[str, list[str]], stages: tuple[str, ...] = ()) -> str:
    """What `bake --print` writes for images with these parents, and builder stages, which have no tag."""
    targets: dict[str, object] = {}
    for name, above in parents.items():
        labels = {**LABELS, "org.opencontainers.image.title": f"nightjar/{name}"}
        target: dict[str, object] = {"labels": labels, "contexts": {one: f"target:{one}" for one in above}}
        targets[name] = target if name in stages else {**target, "tags": [f"nightjar/{name}:cpu"]}
    return json.dumps({"group": {}, "target": targets})


def test_images_come_parents_first_and_builder_stages_are_none() -> None:
    tree = parse_tree(bake({"a_models": ["tools", "jax"], "base": [], "jax": ["base"], "tools": ["base"]}, ("tools",)))
    assert [(image.name, image.parent) for image in tree] == [("base", None), ("jax", "base"), ("a_models", "jax")]
    assert tree[1].tag == "nightjar/jax:cpu"
    assert tree[0].base == "debian:trixie"


@given(st.integers(1, 8).flatmap(lambda n: st.permutations(range(n)).map(list)))
def test_every_parent_stands_before_its_child_however_the_images_are_named(names: list[int]) -> None:
    chain = {str(name): [str(names[i - 1])] if i else [] for i, name in enumerate(names)}
    seen: set[str] = set()
    for image in parse_tree(bake(chain)):
        assert image.parent is None or image.parent in seen
        seen.add(image.name)
    assert seen == set(chain)


def test_secrets_are_named_by_file_and_variables_stay_out_of_the_arguments() -> None:
    command = render_bake(["jax"], flavor="cuda12", revision="abc", secrets={"ca": Path("/etc/ca.pem")})
    assert command.argv[-3:] == ("--set", "*.secrets=id=ca,src=/etc/ca.pem", "jax")
    attestations = {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
    assert command.variables == {"FLAVOR": "cuda12", "REVISION": "abc", "SOURCE": "", **attestations}


def test_checkout_is_found_from_a_folder_inside_it(tmp_path: Path) -> None:
    (tmp_path / "docker").mkdir()
    (tmp_path / "docker/docker-bake.hcl").touch()
    (tmp_path / "deep/down").mkdir(parents=True)
    assert find_checkout(tmp_path / "deep/down") == tmp_path


def test_a_folder_outside_a_checkout_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"{tmp_path}: no docker/docker-bake.hcl here or above"):
        find_checkout(tmp_path)


def test_flavors_are_the_locks_of_the_jax_image(tmp_path: Path) -> None:
    (tmp_path / "docker/locks").mkdir(parents=True)
    for name in ("jax-cuda12.txt", "jax-cpu.txt", "jax-cpu.in", "models.txt"):
        (tmp_path / "docker/locks" / name).touch()
    assert find_flavors(tmp_path) == ("cpu", "cuda12")


def test_images_on_request_are_built_by_their_name_alone() -> None:
    base, jax, source = parse_tree(bake({"base": [], "jax": ["base"], "source": ["jax"]}))
    tree = (base, replace(jax, by_default=False), source)
    chosen = [select_images(tree, None, everything=everything) for everything in (False, True)]
    assert [[image.name for image in images] for images in chosen] == [["base"], ["base", "jax"]]


def test_an_unknown_image_is_answered_with_the_nearest_name() -> None:
    tree = parse_tree(bake({"base": [], "jax": ["base"]}))
    assert [image.name for image in select_images(tree, None)] == ["base", "jax"]
    with pytest.raises(InputError) as caught:
        select_images(tree, "jaxx")
    assert "expected one of base, jax" in caught.value.message
    assert caught.value.hint == "did you mean 'jax'?"
