"""The first day of somebody who comes from JAX-Toolbox: twenty needs, each a command in an image."""

from pathlib import Path
from typing import Any

import pytest
from docker.client import DockerClient

from nightjar_ci.images.tree import Image
from tests.docker.conftest import Runner

pytestmark = pytest.mark.docker

# need -> image and command
NEEDS: dict[str, tuple[str, str]] = {
    "run JAX": ("jax", "python -c 'import jax; print(jax.numpy.ones(3).sum())'"),
    "see the versions": ("jax", "pip list --format freeze"),
    "see JAX's commit": ("jax", "python -c 'import jax.version as v; print(v._git_hash)'"),
    "train a model": ("models", "nightjar-models train gpt_tiny --steps 2 --out /tmp/run"),
    "write Flax": ("jax", "python -c 'from flax import nnx; print(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))'"),
    "save a checkpoint": ("jax", "python -c 'import orbax.checkpoint as ocp; print(ocp.StandardCheckpointer)'"),
    "read data": ("jax", "python -c 'import grain; print(grain.MapDataset.range(3)[0])'"),
    "optimize": ("jax", "python -c 'import optax; print(optax.adam(1e-3).init)'"),
    "check the machine": ("jax", "nightjar-doctor"),
    "profile": ("models", "nightjar-profiling --version"),
    "run a matrix": ("models", "nightjar-ci --help"),
    "make an environment": ("jax", "python -m venv --system-site-packages ~/env && ~/env/bin/python -c 'import jax'"),
    "use uv": ("jax", "uv --version && uv pip list"),
    "clone a repository": ("jax", "git init --quiet ~/project && git -C ~/project status"),
    "page through a file": ("jax", "less --version"),
    "see processes": ("jax", "ps aux"),
    "write to a volume": ("jax", "touch /data/x /workspace/y"),
    "have a home": ("jax", "touch ~/.x && echo $HOME"),
    "use several devices": (
        "jax",
        "XLA_FLAGS=--xla_force_host_platform_device_count=8 python -c 'import jax; assert jax.device_count() == 8'",
    ),
    "dump what XLA compiles": (
        "jax",
        "XLA_FLAGS=--xla_dump_to=/tmp/hlo python -c 'import jax; jax.jit(lambda x: x * 2)(1.0)' && ls /tmp/hlo",
    ),
}


@pytest.mark.parametrize("need", NEEDS)
def test_a_first_need_is_one_command(client: DockerClient, tree: tuple[Image, ...], need: str, tmp_path: Path) -> None:
    name, command = NEEDS[need]
    image = {image.name: image for image in tree}.get(name)
    if image is None:
        pytest.skip(f"the {name} image is not under test")
    options: dict[str, Any] = {"user": "1000:1000", "environment": {"JAX_PLATFORMS": "cpu"}}
    printed = Runner(client, image)("bash", "-c", command, **options)
    assert printed or command.startswith(("python -m venv", "touch", "XLA_FLAGS=--xla_force"))
