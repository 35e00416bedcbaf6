"""Devices of absent GPUs, from a topology that the CUDA plugin makes from a text description.

In: a cluster such as 8 H100. Out: devices for a mesh; JAX can only compile for them, not hold arrays or run programs.
JAX_PLATFORMS must be `cpu` before JAX starts, otherwise the plugin looks for a driver and fails.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import Any

from nightjar_models.errors import CompilerError
from nightjar_models.hardware.target import Cluster
from nightjar_models.program.ptx import find_ptxas

PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
INSTALL = (
    "pip install --no-deps jax-cuda12-plugin jax-cuda12-pjrt (of jax's version) nvidia-cuda-nvcc-cu12 nvidia-cudnn-cu12"
)


def find_plugin() -> str | None:
    """The module name of the installed CUDA plugin, or None."""
    return next((name for name in PLUGINS if importlib.util.find_spec(name) is not None), None)


def prepare_process() -> None:
    """Sets the environment that JAX reads at start: it looks for no driver and logs only warnings and errors."""
    if find_plugin() is None:
        raise CompilerError(
            "the CUDA plugin of JAX is not installed: expected one of " + ", ".join(PLUGINS) + ".",
            f"no GPU and no driver are needed, only: {INSTALL}; docker/locks/aot.txt lists them with hashes",
        )
    if find_ptxas() is None:
        raise CompilerError(
            "ptxas is not installed: expected it in the package nvidia-cuda-nvcc-cu12 or on PATH.",
            "pip install --no-deps nvidia-cuda-nvcc-cu12",
        )
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # warnings and errors stay


def find_devices(cluster: Cluster) -> Sequence[Any]:
    """The devices of a cluster, host by host."""
    import jax
    from jax.experimental import topologies

    try:
        description = topologies.get_topology_desc(
            platform="cuda", target_config=cluster.target.text, topology=cluster.topology
        )
    except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError) as error:
        raise CompilerError(
            f"--target {cluster}: the CUDA plugin cannot make a topology: {str(error).splitlines()[0]}",
            f"install the plugin version of jax {jax.__version__}",
        ) from None
    return list(description.devices)


def name_device(cluster: Cluster) -> Any:
    """A context in which kernels of Pallas are traced for a GPU of the cluster: JAX asks which one it will be."""
    import jax

    device = jax.sharding.AbstractDevice(cluster.target.name, num_cores=None, platform="gpu")
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=device))
