"""Images of a nightly day of JAX, built for real: its wheels come from their own index, labels name the commits."""

import hashlib
import json
from pathlib import Path

import pytest
from docker.client import DockerClient

from nightjar_ci.images.build import build_images
from nightjar_ci.images.lock.jax_day import FILE
from nightjar_ci.images.tree import Image
from nightjar_ci.tools import ToolError
from tests.ci.jax_nightly.wheels import serve
from tests.docker.conftest import Runner, rename_image
from tests.docker.package_index import fill

pytestmark = [pytest.mark.docker, pytest.mark.slow]

VERSION = "2.0.0.dev20261120"
DAY = "2026-11-21"  # not the date of the files
COMMITS = {"jax": "a" * 40, "xla": "b" * 40}


def write_locks(checkout: Path, digests: dict[str, str]) -> None:
    entries = (f"{release} \\\n    --hash=sha256:{digest}\n" for release, digest in digests.items())
    (checkout / "docker/locks/jax-cpu.txt").write_text("".join(entries))
    day = {"date": DAY, "versions": {"jax": VERSION}, "commits": COMMITS}
    (checkout / FILE).write_text(json.dumps(day))


def test_a_nightly_day_is_built_from_both_indexes_and_labelled(
    checkout: Path, bridge: str, client: DockerClient, tree: tuple[Image, ...], tmp_path: Path
) -> None:
    image = rename_image(tree, "jax", "cpu")
    released = fill(tmp_path / "releases", "flax==1.0", "jax==1.0")
    nightly = fill(tmp_path / "nightly", f"jax=={VERSION}", "flax==1.0")
    write_locks(checkout, {"flax==1.0": released["flax==1.0"], f"jax=={VERSION}": nightly[f"jax=={VERSION}"]})
    with serve(tmp_path / "releases", bridge) as index, serve(tmp_path / "nightly", bridge) as days:
        environ = {"UV_DEFAULT_INDEX": index, "NIGHTJAR_NIGHTLY_INDEX": days}
        build_images(checkout, [image], flavor="cpu", environ=environ, on_step=lambda step: None)
    built = client.images.get(image.tag).attrs
    labels = built["Config"]["Labels"]
    assert (labels["nightjar.jax.day"], built["Created"]) == (DAY, f"{DAY}T00:00:00Z")
    assert (labels["nightjar.jax.commit"], labels["nightjar.xla.commit"]) == (COMMITS["jax"], COMMITS["xla"])
    run = Runner(client, image)
    show = "from importlib.metadata import version; print(version('jax'), version('flax'))"
    assert run("python", "-c", show).split() == [VERSION, "1.0"]
    assert days not in json.dumps(client.images.get(image.tag).attrs)


def test_a_folder_is_no_index_of_a_build_and_the_message_says_what_is(
    checkout: Path, bridge: str, tree: tuple[Image, ...], tmp_path: Path
) -> None:
    image = rename_image(tree, "jax", "cpu")
    write_locks(checkout, {f"jax=={VERSION}": hashlib.sha256(str(tmp_path).encode()).hexdigest()})
    environ = {"NIGHTJAR_NIGHTLY_INDEX": str(tmp_path)}
    with pytest.raises(ToolError, match="nightly wheels of JAX") as caught:
        build_images(checkout, [image], flavor="cpu", environ=environ, on_step=lambda step: None)
    assert "set NIGHTJAR_NIGHTLY_INDEX to its http or https URL" in caught.value.message
