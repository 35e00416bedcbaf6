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
        name: of the cell and of its module.
        room: folder next to this file that holds its module; this folder if empty.
        packages: the distributions under test, besides JAX.
        summary: its computation and its checks.
    """

    name: str
    packages: tuple[str, ...]
    summary: str
    room: str = ""

    def load(self) -> Callable[[], Finding]:
        """The function that runs it; the libraries under test are imported only when it is called."""
        module = ".".join(filter(None, ("nightjar_models.ecosystem", self.room, self.name)))
        run: Callable[[], Finding] = importlib.import_module(module).run
        return run

    @property
    def lock(self) -> str:
        """Name of its lock in `docker/locks/ecosystem/`; the cells of JAX and Flax themselves share one."""
        if self.room == CORE:
            return CORE
        if self.name == "cupy":
            return GPU
        return self.name


CORE = "core"
GPU = "gpu"  # the lock with JAX's CUDA plugin, for every cell that a GPU runs without a build
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
        summary="MuJoCo humanoid: free fall by g, the state of MuJoCo's own C engine, steps per second of batches.",
    ),
    Entry(
        name="warp",
        packages=("warp-lang",),
        summary="Warp kernel under jit, grad and vmap equals JAX; arrays go to Warp and back without a copy.",
    ),
    Entry(
        name="xlb",
        packages=("xlb", "warp-lang"),
        summary="Lattice Boltzmann: a vortex decays at its rate; its derivative; four devices compute as one.",
    ),
    Entry(
        name="levanter",
        packages=("levanter", "haliax", "equinox"),
        summary="Named tensors, attention, Hugging Face checkpoints, LoRA and Muon equal their formulas.",
    ),
    Entry(
        name="dlpack",
        packages=("torch", "numpy"),
        summary="Arrays go to and come from PyTorch and NumPy at the same address: no copy, in every common type.",
    ),
    Entry(
        name="dlpack_tensorflow",
        packages=("tensorflow-cpu",),
        summary="Tensors of eight types and batches of tf.data go to JAX and come back at the same address: no copy.",
    ),
    Entry(
        name="dali",
        packages=("nvidia-dali-cuda120", "flax"),
        summary="DALI: one pipeline trains a Flax model and predicts with it; pixels are Pillow's; batches sharded.",
    ),
    Entry(
        name="haiku",
        room="learning",
        packages=("dm-haiku", "optax"),
        summary="Haiku: a linear layer learns the least-squares solution; batch statistics; an RNN unrolled twice.",
    ),
    Entry(
        name="keras",
        room="learning",
        packages=("keras",),
        summary="Keras on JAX: a model learns the least-squares solution; a convolution equals NumPy's.",
    ),
    Entry(
        name="chex",
        room="learning",
        packages=("chex",),
        summary="Chex: eight wrong assertions stop, also in jit; a dataclass is a tree.",
    ),
    Entry(
        name="qwix",
        room="learning",
        packages=("qwix", "flax"),
        summary="Qwix: int8 weights and activations err by what rounding explains.",
    ),
    Entry(
        name="jraph",
        room="learning",
        packages=("jraph",),
        summary="Jraph: a graph convolution equals the normed adjacency matrix; batches come apart.",
    ),
    Entry(
        name="evosax",
        room="learning",
        packages=("evosax",),
        summary="evosax: CMA-ES finds the minimum of a sphere and of Rosenbrock's valley.",
    ),
    Entry(
        name="gymnax",
        room="learning",
        packages=("gymnax",),
        summary="gymnax: the cart moves by its equations; thousands of steps at once.",
    ),
    Entry(
        name="mctx",
        room="learning",
        packages=("mctx",),
        summary="Mctx: Gumbel MuZero finds the best action of a small game.",
    ),
    Entry(
        name="tunix",
        room="learning",
        packages=("google-tunix", "qwix", "flax"),
        summary="Tunix: LoRA learns a sequence and leaves its base alone; GRPO raises a reward to its top.",
    ),
    Entry(
        name="gemma",
        room="learning",
        packages=("google-tunix", "flax"),
        summary="Gemma 3 of Tunix, a tiny one: logits by NumPy's formula; with a cache it writes the same.",
    ),
    Entry(
        name="blackjax",
        room="science",
        packages=("blackjax",),
        summary="BlackJAX: NUTS draws from a Gaussian whose moments are known.",
    ),
    Entry(
        name="distrax",
        room="science",
        packages=("distrax",),
        summary="Distrax: densities, divergences and samples equal their formulas.",
    ),
    Entry(
        name="jax_md",
        room="science",
        packages=("jax-md",),
        summary="JAX MD: Lennard-Jones by its formula; energy kept; neighbour lists agree.",
    ),
    Entry(
        name="e3nn",
        room="science",
        packages=("e3nn-jax",),
        summary="e3nn: spherical harmonics and tensor products turn with space.",
    ),
    Entry(
        name="pennylane",
        room="science",
        packages=("pennylane",),
        summary="PennyLane: circuits give the cosines and gradients of quantum mechanics.",
    ),
    Entry(
        name="netket",
        room="science",
        packages=("netket",),
        summary="NetKet: exact and variational ground states of an Ising chain.",
    ),
    Entry(name="ott", room="science", packages=("ott-jax",), summary="OTT: transport costs equal their closed forms."),
    Entry(
        name="lineax",
        room="science",
        packages=("lineax", "equinox"),
        summary="Lineax and Equinox: four solvers equal NumPy's; the gradient of a solve.",
    ),
    Entry(
        name="cupy",
        packages=("cupy-cuda12x",),
        summary="Arrays pass between JAX and CuPy by DLPack and __cuda_array_interface__ (needs an NVIDIA GPU).",
    ),
    Entry(
        name="transformer_engine",
        packages=("transformer-engine", "transformer-engine-jax", "flax"),
        summary="TransformerEngine: import, FP8 recipes, LayerNormMLP (needs an NVIDIA GPU).",
    ),
    Entry(
        name="lora",
        room=CORE,
        packages=("flax", "optax"),
        summary="Adapters of rank two learn a change of rank two; the weights below them stay as they are.",
    ),
    Entry(
        name="ppo",
        room=CORE,
        packages=("flax", "optax"),
        summary="Proximal policy optimization balances a pole, simulated in JAX, by its published equations.",
    ),
    Entry(
        name="export",
        room=CORE,
        packages=("flatbuffers",),
        summary="A training step saved by jax.export, here and by an earlier release, equals NumPy's.",
    ),
    Entry(
        name="cache",
        room=CORE,
        packages=("flax", "optax"),
        summary="A second process compiles nothing: the persistent cache has every program.",
    ),
    Entry(
        name="pmap",
        room=CORE,
        packages=("jaxlib",),
        summary="Gradients and means over eight devices by jax.pmap, while JAX has it.",
    ),
    Entry(
        name="fp8_linen",
        room=CORE,
        packages=("flax", "optax"),
        summary="Linen's layers with FP8 products in a TrainState loop train the curve of ours in NNX.",
    ),
    Entry(
        name="hartree_fock",
        room=CORE,
        packages=("jaxlib",),
        summary="Hartree-Fock of H2: the published energy, and the bond length by its gradient.",
    ),
    Entry(
        name="genomics",
        room=CORE,
        packages=("flax", "optax"),
        summary="A convolution over both strands of DNA learns the CCAAT box; its filter shows it.",
    ),
    Entry(
        name="orbax_tiers",
        room=CORE,
        packages=("orbax-checkpoint",),
        summary="Orbax's local tier: two processes restore what one disk has; once lost, the shared one.",
    ),
    Entry(
        name="imagen",
        room=CORE,
        packages=("flax", "optax"),
        summary="Imagen's cascade draws digits by their names: T5's encoder, 4x4 pixels, super-resolution to 8x8.",
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
