"""Do all images of the tree build, is what they are for imported inside, and are they within their budgets?

As far as a machine without a GPU can tell. Stages are dropped from the build cache as soon as an image has their
layers: CUDA 12 takes 25 GB of disk.
"""

import tomllib

from nightjar_ci.images.build import inspect_image
from nightjar_ci.images.tree import read_tree
from nightjar_ci.tools import ToolError, run_captured
from tests.bench.images.workshop import CHECKOUT, build, drop_stages, open_workshop, say
from tests.bench.table import Row
from tests.docker.test_te import WITH_DRIVER

MB = 1e6
IMPORTS = {
    "base": "import ssl, venv",
    "cuda": "import glob; print(len(glob.glob('/opt/nightjar/lib/python3*/site-packages/nvidia/*/lib/*.so*')))",
    "jax": "import jax, flax, optax, orbax.checkpoint, grain; print(jax.__version__)",
    "te": "import transformer_engine.jax as te, transformer_engine_jax as x; print(len(x.registrations()))",
    "dali": "import nvidia.dali as d; from nvidia.dali import fn; print(d.__version__)",
    "profiling": "import nightjar_profiling",
    "models": "import nightjar_models, nightjar_ci, nightjar_profiling",
    "devcontainer": "import pytest, mypy",
    "devel": "import jax, flax, pytest; print(jax.__file__)",
    "equinox": "import equinox, diffrax, lineax, optimistix; print(equinox.__version__)",
    "levanter": "import haliax, levanter",
    "maxtext": "import maxtext",
    "tunix": "import tunix",
}
PLUGIN = "import jax_plugins.xla_cuda{} as p; print(p.__file__)"
UNCHECKED = (
    "not checked without a GPU: TransformerEngine's kernels and FP8, DALI's GPU operators and nvJPEG, cuDNN and NCCL at"
    " work, the driver floor"
)


def list_goals(flavor: str) -> list[str]:
    images = [image.name for image in read_tree(CHECKOUT, flavor)]
    return [f"{image}: {what}" for image in images for what in ("built and imported", "within its budget")]


def measure(flavor: str) -> list[Row]:
    rows, budgets = [], tomllib.loads((CHECKOUT / "docker/budgets.toml").read_text())["size_mb"]
    with open_workshop():
        for image in [image.name for image in read_tree(CHECKOUT, flavor)]:
            took = build(CHECKOUT, image, flavor, "leaf")
            drop_stages()
            code = IMPORTS[image]
            if image == "jax" and flavor != "cpu":
                code += "\n" + PLUGIN.format(flavor.removeprefix("cuda"))
            argv = ["docker", "run", "--rm", "--network", "none", "--env", "JAX_PLATFORMS=cpu"]
            try:
                said = run_captured([*argv, f"nightjar-bench/{image}:leaf", "sh", "-c", WITH_DRIVER, code]).strip()
                works = 1.0
            except ToolError as error:
                said, works = error.message, 0.0
            say(f"{image}: built in {took:.0f} s; {said}")
            rows.append(Row(f"{image}: built and imported", works, goal=1.0, better="higher"))
            match inspect_image(f"nightjar-bench/{image}:leaf"):
                case {"Size": int(size)}:
                    goal = budgets[f"{image}-{flavor}"]
                    rows.append(Row(f"{image}: within its budget", size / MB, goal=goal, unit="MB"))
                    say(f"{image}-{flavor} = {size / MB:.0f}")
    say(UNCHECKED)
    return rows
