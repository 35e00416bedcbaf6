"""What does a build make of an index that is not what it was when the lock was made? Real builds of the jax image.

A copy of `docker/` whose jax image holds one small package, and an index on the engine's bridge. The stages below the
package come from the cache of the images under test.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nightjar_ci.images.build import BuildReport, build_images
from nightjar_ci.images.tree import Image
from nightjar_ci.tools import ToolError
from tests.ci.jax_nightly.wheels import serve
from tests.docker.conftest import rename_image
from tests.docker.package_index import fill

pytestmark = [pytest.mark.docker, pytest.mark.slow]

Build = Callable[..., BuildReport]
LOCK = "flax==1.0 \\\n    --hash=sha256:{}\n"
WHEEL = "flax/flax-1.0-py3-none-any.whl"


@pytest.fixture
def build(checkout: Path, tree: tuple[Image, ...]) -> Build:
    """Builds the jax image of the copy from an index, with a lock of one hash."""
    image = rename_image(tree, "jax", "cpu")

    def run(index: str, digest: str) -> BuildReport:
        (checkout / "docker/locks/jax-cpu.txt").write_text(LOCK.format(digest))
        return build_images(
            checkout, [image], flavor="cpu", environ={"UV_DEFAULT_INDEX": index}, on_step=lambda step: None
        )

    return run


def make_index(folder: Path, *versions: str) -> str:
    """Wheels of flax in a folder; returns the digest of 1.0."""
    return fill(folder, *(f"flax=={version}" for version in versions)).get("flax==1.0", "0" * 64)


def forget_stage(checkout: Path, change: str) -> None:
    """Makes the stage of the package run again, by a step that was never run before and leaves something: of one that
    leaves nothing, BuildKit sees that what follows would begin with the same files, and takes it from its cache."""
    dockerfile = checkout / "docker/Dockerfile.jax"
    text = dockerfile.read_text()
    assert "FROM tools AS pure\n" in text
    dockerfile.write_text(text.replace("FROM tools AS pure\n", f"FROM tools AS pure\n{change}\n"))


def test_a_lock_keeps_its_layers_when_the_index_moves(
    checkout: Path, bridge: str, build: Build, tmp_path: Path
) -> None:
    digest = make_index(tmp_path / "then", "1.0")
    make_index(tmp_path / "now", "1.1", "2.0")
    shutil.copy(tmp_path / "then" / WHEEL, tmp_path / "now" / WHEEL)
    forget_stage(checkout, f"RUN echo then {os.getpid()} >/mark")
    with serve(tmp_path / "then", bridge) as index:
        then = build(index, digest).images
    forget_stage(checkout, f"RUN echo now {os.getpid()} >/mark")
    with serve(tmp_path / "now", bridge) as index:
        now = build(index, digest).images
    assert now == then
    assert len(set(now[0].layers)) > 2


def test_a_wheel_with_another_hash_ends_the_build_unlocked(bridge: str, build: Build, tmp_path: Path) -> None:
    make_index(tmp_path / "index", "1.0")
    with serve(tmp_path / "index", bridge) as index, pytest.raises(ToolError) as caught:
        build(index, hashlib.sha256(str(os.getpid()).encode()).hexdigest())
    assert caught.value.exit_code == 3
    assert "ash mismatch" in caught.value.message
    assert "check the index, and review the file before you lock it" in str(caught.value)
