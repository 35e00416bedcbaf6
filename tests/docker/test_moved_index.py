"""What does a build make of an index that is not what it was when the lock was made? Real builds of the jax image.

A copy of `docker/` whose jax image holds one small package, and an index on the engine's bridge. The stages below the
package come from the cache of the images under test.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from docker.client import DockerClient

from nightjar_ci.images.build import BuildReport, build_images
from nightjar_ci.images.process import ToolError
from nightjar_ci.images.tree import Image
from tests.ci.test_images_bump import make_wheel
from tests.docker.conftest import list_tags
from tests.docker.copies import copy_sources

pytestmark = [pytest.mark.docker, pytest.mark.slow]

Build = Callable[..., BuildReport]
LOCK = "flax==1.0 \\\n    --hash=sha256:{}\n"
WHEEL = "flax-1.0-py3-none-any.whl"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def serve_index(folder: Path, host: str) -> Iterator[str]:
    """The wheels of a folder as a package index, at its address."""
    project = folder / "flax"
    project.mkdir(parents=True)
    for wheel in folder.glob("*.whl"):
        wheel.rename(project / wheel.name)
    links = "".join(f'<a href="{wheel.name}">{wheel.name}</a>' for wheel in project.iterdir())
    (project / "index.html").write_text(f"<!doctype html><html><body>{links}</body></html>")
    server = ThreadingHTTPServer((host, 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://{host}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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


@pytest.fixture
def build(checkout: Path, tree: tuple[Image, ...]) -> Build:
    """Builds the jax image of the copy from an index, with a lock of one hash."""
    (jax,) = (image for image in tree if image.name == "jax")
    tag = jax.tag.replace("nightjar/", f"nightjar-test{os.getpid()}/")
    image = Image(name="jax", tag=tag, parent=None, base=jax.base, description="")

    def run(index: str, digest: str) -> BuildReport:
        (checkout / "docker/locks/jax-cpu.txt").write_text(LOCK.format(digest))
        return build_images(
            checkout, [image], flavor="cpu", environ={"UV_DEFAULT_INDEX": index}, on_step=lambda step: None
        )

    return run


def make_index(folder: Path, *versions: str) -> str:
    """Wheels of flax in a folder; returns the digest of 1.0."""
    folder.mkdir()
    for version in versions:
        make_wheel(folder, "flax", version)
    wheel = folder / WHEEL
    return hashlib.sha256(wheel.read_bytes()).hexdigest() if wheel.is_file() else "0" * 64


def forget_stage(checkout: Path, change: str) -> None:
    """Makes the stage of the package run again, by a step that was never run before."""
    dockerfile = checkout / "docker/Dockerfile.jax"
    text = dockerfile.read_text()
    assert "FROM tools AS pure\n" in text
    dockerfile.write_text(text.replace("FROM tools AS pure\n", f"FROM tools AS pure\n{change}\n"))


def test_a_lock_gives_the_same_layers_after_the_index_moved_on(
    checkout: Path, bridge: str, build: Build, tmp_path: Path
) -> None:
    digest = make_index(tmp_path / "then", "1.0")
    make_index(tmp_path / "now", "1.1", "2.0")
    shutil.copy(tmp_path / "then" / WHEEL, tmp_path / "now")
    forget_stage(checkout, f"RUN : then {os.getpid()}")
    with serve_index(tmp_path / "then", bridge) as index:
        then = build(index, digest).images
    forget_stage(checkout, f"RUN : now {os.getpid()}")
    with serve_index(tmp_path / "now", bridge) as index:
        now = build(index, digest).images
    assert now == then
    assert len(set(now[0].layers)) > 2


def test_a_wheel_whose_hash_changed_ends_the_build_and_is_never_locked_anew(
    bridge: str, build: Build, tmp_path: Path
) -> None:
    make_index(tmp_path / "index", "1.0")
    with serve_index(tmp_path / "index", bridge) as index, pytest.raises(ToolError) as caught:
        build(index, hashlib.sha256(str(os.getpid()).encode()).hexdigest())
    assert caught.value.exit_code == 3
    assert "ash mismatch" in caught.value.message
    assert "is it the right index? Never lock it anew unseen" in str(caught.value)


def test_a_pin_that_the_index_does_not_have_ends_the_build_with_the_next_step(
    bridge: str, build: Build, tmp_path: Path
) -> None:
    make_index(tmp_path / "index", "2.0")
    with serve_index(tmp_path / "index", bridge) as index, pytest.raises(ToolError) as caught:
        build(index, hashlib.sha256(f"absent {os.getpid()}".encode()).hexdigest())
    assert caught.value.exit_code == 3
    assert "flax==1.0" in caught.value.message
    assert "correct it in docker/locks, or run `nightjar-ci images lock --upgrade`" in str(caught.value)


def test_a_full_disk_ends_the_build_with_what_frees_it(
    checkout: Path, bridge: str, build: Build, tmp_path: Path
) -> None:
    digest = make_index(tmp_path / "index", "1.0")
    small = "RUN --mount=type=tmpfs,target=/target,size=65536"
    forget_stage(checkout, f"{small} head -c 1000000 /dev/zero > /target/of-{os.getpid()}")
    with serve_index(tmp_path / "index", bridge) as index, pytest.raises(ToolError) as caught:
        build(index, digest)
    assert caught.value.exit_code == 3
    assert "`docker builder prune` frees the build cache" in str(caught.value)
