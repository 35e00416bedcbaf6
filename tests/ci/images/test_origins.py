"""What labels say of an image's base and version is what engine and locks say, and nothing where they are silent."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from nightjar_ci.errors import InputError
from nightjar_ci.images.lock.commits import read_image_python
from nightjar_ci.images.origins import describe_base, list_patches, list_versions
from nightjar_ci.images.tree import find_flavors, find_locks
from tests.docker.copies import CHECKOUT

ONE, TWO = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"


@pytest.mark.parametrize(
    ("reference", "inspected", "digest", "layers"),
    [
        ("debian:trixie", {"RepoDigests": [f"other@{TWO}", f"debian@{ONE}"]}, ONE, ""),
        ("docker.io/library/debian:trixie", {"RepoDigests": [f"debian@{ONE}"]}, ONE, ""),
        ("host:5000/debian", {"RepoDigests": [f"host:5000/debian@{ONE}"]}, ONE, ""),
        (f"nvcr.io/nvidia/cuda:13@{TWO}", None, TWO, ""),
        ("local:1", {"RepoDigests": [f"host/pushed@{TWO}"], "RootFS": {"Layers": [ONE, TWO]}}, "", f"{ONE} {TWO}"),
        ("not-pulled:1", None, "", ""),
        ("empty:1", {"RepoDigests": None, "RootFS": {"Type": "layers"}}, "", ""),
    ],
)
def test_a_base_is_named_by_the_digest_of_its_manifest_or_by_its_layers(
    reference: str, inspected: dict[str, Any] | None, digest: str, layers: str
) -> None:
    assert describe_base(reference, inspected) == {"BASE_DIGEST": digest, "BASE_LAYERS": layers}


@pytest.mark.parametrize("flavor", find_flavors(CHECKOUT))
def test_each_image_of_a_flavor_has_the_version_that_its_lock_says(flavor: str) -> None:
    texts = {name: path.read_text() for name, path in find_locks(CHECKOUT).items()}
    versions = json.loads(list_versions(texts, flavor, read_image_python(CHECKOUT))["VERSIONS"])
    everywhere = {"", "jax", "devel", "equinox", "levanter", "maxtext", "tunix"}
    assert set(versions) == everywhere | (set() if flavor == "cpu" else {"cuda", "te", "dali"})
    assert f"\njax=={versions['jax']} " in texts[f"jax-{flavor}"]
    older = json.loads(list_versions(texts, flavor, "3.11")["VERSIONS"])
    assert older["jax"] < versions["jax"]


def test_a_commit_is_the_version_of_a_package_that_is_locked_to_one() -> None:
    locks = {"jax-cpu": f"jax @ git+https://example.org/jax@{'a' * 40}\n", "trainers/maxtext": "maxtext-more==1.0\n"}
    versions = json.loads(list_versions(locks, "cpu", "3.13")["VERSIONS"])
    assert (versions["jax"], "maxtext" in versions) == ("a" * 40, False)


def test_patches_are_named_with_their_digests_and_only_for_packages_of_the_lock(tmp_path: Path) -> None:
    lock = "flax==1.0\noptax @ git+https://host/optax@0\n"
    names = ["flax/2.patch", "flax/1.patch", "optax/1.patch", "xla/1.patch"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    named = [f"{name}@{hashlib.sha256(name.encode()).hexdigest()}" for name in sorted(names)]
    assert list_patches(tmp_path, lock) == {"PATCHES": " ".join(named)}
    with pytest.raises(InputError, match=r"flax/1.patch: the jax image has no package 'flax'"):
        list_patches(tmp_path, lock.replace("flax", "flax-nnx"))
    (tmp_path / "flax/1.patch").rename(tmp_path / "flax/a fix.patch")
    with pytest.raises(InputError, match=r"flax/a fix.patch: expected a name without spaces"):
        list_patches(tmp_path, lock)
    (tmp_path / "flax").rename(tmp_path / "jaxlib")
    with pytest.raises(InputError, match=r"jaxlib/2.patch: jaxlib is compiled"):
        list_patches(tmp_path, lock.replace("flax", "jaxlib"))
