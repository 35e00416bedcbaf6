"""Do the leaves of the tree build, and is what they are for imported inside, as far as a machine without a GPU can?"""

from __future__ import annotations

from nightjar_ci.images.process import ToolError, run_captured
from tests.bench.images.workshop import CHECKOUT, build, open_workshop, say
from tests.bench.table import Row
from tests.docker.test_te import WITH_DRIVER

TE = "import transformer_engine.jax as te, transformer_engine_jax as x; print(len(x.registrations()))"
DALI = "import nvidia.dali as d; from nvidia.dali import fn; print(d.__version__)"
CUDA = "import jax, jax_plugins.xla_cuda12 as p; print(jax.__version__, p.__file__)"
UNCHECKED = (
    "not checked without a GPU: TransformerEngine's kernels and FP8, DALI's GPU operators and nvJPEG, cuDNN and NCCL at"
    " work, the driver floor"
)


def measure(flavor: str) -> list[Row]:
    """1 for each image that builds and whose import succeeds."""
    wanted = {"profiling": "import nightjar_profiling", "devcontainer": "import pytest, mypy"}
    if flavor != "cpu":
        wanted = {"jax": CUDA.replace("12", flavor[-2:]), "te": TE, "dali": DALI, **wanted}
    rows = []
    with open_workshop():
        for image, code in wanted.items():
            took = build(CHECKOUT, image, flavor, "leaf")
            argv = ["docker", "run", "--rm", "--network", "none", "--env", "JAX_PLATFORMS=cpu"]
            try:
                said = run_captured([*argv, f"nightjar-bench/{image}:leaf", "sh", "-c", WITH_DRIVER, code]).strip()
                works = 1.0
            except ToolError as error:
                said, works = error.message, 0.0
            say(f"{image}: built in {took:.0f} s; {said}")
            rows.append(Row(name=f"{image}: built and imported", ours=works, goal=1.0, better="higher"))
    say(UNCHECKED)
    return rows
