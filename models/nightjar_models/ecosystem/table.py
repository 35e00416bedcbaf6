"""Table of the ecosystem cells: module, packages and summary of each.

In: a name. Out: its entry, or an `InputError`. Nothing here imports a library under test.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable

from nightjar_models.ecosystem.cell import Finding
from nightjar_models.errors import InputError, did_you_mean


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A cell.

    Attributes:
        name: of the cell, of its module beside this file, and of its lock in `docker/locks/ecosystem/`.
        packages: the distributions under test, besides JAX.
        summary: what it computes, and what it checks.
    """

    name: str
    packages: tuple[str, ...]
    summary: str

    def load(self) -> Callable[[], Finding]:
        """The function that runs it; the libraries under test are imported only when it is called."""
        run: Callable[[], Finding] = importlib.import_module(f"nightjar_models.ecosystem.{self.name}").run
        return run


_ENTRIES = (
    Entry(
        name="diffrax",
        packages=("diffrax", "equinox", "optax"),
        summary="Neural ODE: the oscillator's solution, its gradient, and a field learned from a spiral.",
    ),
    Entry(
        name="optimistix",
        packages=("optimistix", "equinox", "lineax"),
        summary="Rosenbrock's minimum, a root, and the derivative of a root by the implicit function theorem.",
    ),
    Entry(
        name="numpyro",
        packages=("numpyro",),
        summary="NUTS on the diabetes data: the posterior mean and spread that linear algebra gives exactly.",
    ),
    Entry(
        name="mjx",
        packages=("mujoco-mjx", "mujoco"),
        summary="MuJoCo humanoid: free fall by g, the state of MuJoCo's own C engine, environment steps per second.",
    ),
    Entry(
        name="warp",
        packages=("warp-lang",),
        summary="Warp kernel called from jit: a heat stencil equals the one in JAX, and keeps its heat.",
    ),
    Entry(
        name="xlb",
        packages=("xlb", "warp-lang"),
        summary="Lattice Boltzmann: the decay rate of a Taylor-Green vortex, mass kept, lattice updates per second.",
    ),
    Entry(
        name="levanter",
        packages=("levanter", "haliax", "equinox"),
        summary="Named tensors: contractions equal einsum; Levanter's causal attention equals its formula.",
    ),
    Entry(
        name="dlpack",
        packages=("torch", "numpy"),
        summary="Arrays go to and come from PyTorch and NumPy at the same address: no copy, in every common type.",
    ),
    Entry(
        name="dali",
        packages=("nvidia-dali-cuda120",),
        summary="DALI's JAX iterator: every JPEG once an epoch, its pixels those of Pillow, batches sharded.",
    ),
    Entry(
        name="transformer_engine",
        packages=("transformer-engine", "transformer-engine-jax", "flax"),
        summary="TransformerEngine: import, FP8 recipes, LayerNormMLP (needs an NVIDIA GPU).",
    ),
)

CELLS: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def find_cell(name: str) -> Entry:
    """The cell of that name.

    Raises:
        InputError: the name is unknown.
    """
    if name not in CELLS:
        raise InputError(f"unknown cell {name!r}: expected one of {', '.join(CELLS)}.", did_you_mean(name, CELLS))
    return CELLS[name]
