"""Two builds from one state of the sources are the same bytes, although nothing of the first is there in the second.

The smallest image, without any cache. Python packages: `test_moved_index.py` installs a wheel twice and compares, and
`nox -s bench_images` builds base, jax and models twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from docker.client import DockerClient

from nightjar_ci.images.build import open_secrets
from nightjar_ci.images.tree import read_tree, render_bake
from nightjar_ci.tools import run_captured
from tests.docker.conftest import CHECKOUT, list_tags

pytestmark = [pytest.mark.docker, pytest.mark.weekly]

TAG = f"nightjar-test{os.getpid()}/base"


@pytest.fixture
def tags(client: DockerClient) -> Iterator[tuple[str, str]]:
    """Two tags, which are removed."""
    base = read_tree(CHECKOUT)[0].base
    if base not in list_tags(client):
        pytest.skip(f"the engine has no {base}: nightjar-ci images build base")
    yield f"{TAG}:one", f"{TAG}:two"
    for tag in list_tags(client):
        if tag.startswith(f"{TAG}:"):
            client.images.remove(tag)


def test_the_base_image_is_the_same_bytes_when_it_is_built_again_without_cache(
    client: DockerClient, tags: tuple[str, str]
) -> None:
    with open_secrets(os.environ) as secrets:  # pip and uv come from the index
        for tag in tags:
            options = ["--no-cache", "--progress", "plain", "--set", f"base-cpu-*.tags={tag}"]
            command = render_bake(["base"], options=options, secrets=secrets)
            run_captured(command.argv, cwd=CHECKOUT, variables=command.variables)
    one, two = (client.images.get(tag) for tag in tags)
    # no name in base is one that the engine puts in either of two orders (`layer_order.py`), so ids can be compared
    assert one.attrs["RootFS"] == two.attrs["RootFS"]
    assert len(one.attrs["RootFS"]["Layers"]) > 2
    assert one.id == two.id  # the digest of the configuration: labels, variables, history and dates, too
