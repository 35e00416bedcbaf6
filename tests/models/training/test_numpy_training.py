"""Four training steps of a GPT are those of plain NumPy: forward pass, gradients, clipping, AdamW and its schedule.

A gradient of the reference is the imaginary part of the loss where one parameter has a tiny imaginary part (Squire and
Trapp 1998, "Using Complex Variables to Estimate Derivatives of Real Functions"): exact to float64, and no derivative
is written down twice. Of the fourth loss the tolerance is 1e-5; without clipping it would be 7e-3 away, with a beta2 of
0.9 3e-4, without decay 2e-4, with another end of the schedule 3e-4.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from numpy.typing import NDArray

from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.parallel.sharding import make_mesh
from nightjar_models.presets.config import Compute, TrainConfig
from nightjar_models.presets.sizes import GPTConfig
from nightjar_models.presets.tiny import gpt_tiny
from nightjar_models.training.idioms import make_program
from nightjar_models.training.tasks import find_task
from tests.models.architectures.numpy_layers import cross_entropy
from tests.models.architectures.numpy_models import run_gpt
from tests.models.conftest import run_steps
from tests.models.training.test_optimizer import rate

STEPS, TINY = 4, 1e-30
CONFIG = dataclasses.replace(
    gpt_tiny(),
    model=GPTConfig(vocabulary=7, length=4, width=4, layers=1, heads=2, feed_forward=6),
    batch_size=4,
    learning_rate=0.03,
    warmup_steps=1,
    schedule_steps=5,
    weight_decay=0.3,
    clip_norm=0.3,
)
Leaves = list[NDArray[np.float64]]


def measure(parameters: Any, tokens: NDArray[np.int32]) -> Any:
    """The mean negative log likelihood of the next symbols."""
    return cross_entropy(run_gpt(parameters, tokens[:, :-1]), tokens[:, 1:]).mean()


def differentiate(leaves: Leaves, tree: Any, tokens: NDArray[np.int32]) -> Leaves:
    gradients = [np.zeros_like(leaf) for leaf in leaves]
    for number, leaf in enumerate(leaves):
        for index in np.ndindex(leaf.shape):
            moved = leaf.astype(np.complex128)
            moved[index] += 1j * TINY
            changed = jax.tree.unflatten(tree, [*leaves[:number], moved, *leaves[number + 1 :]])
            gradients[number][index] = measure(changed, tokens).imag / TINY
    return gradients


def train(config: TrainConfig, parameters: Any, batches: list[NDArray[np.int32]]) -> tuple[list[float], list[float]]:
    """The losses, and the gradients' norms before they are clipped (Loshchilov and Hutter 2019, algorithm 2)."""
    paths, tree = jax.tree.flatten_with_path(parameters)
    leaves: Leaves = [leaf for _, leaf in paths]
    decays = ["scale" not in str(path[-1]) and "bias" not in str(path[-1]) for path, _ in paths]
    first, second = ([np.zeros_like(leaf) for leaf in leaves] for _ in range(2))
    losses, norms = [], []
    for step, tokens in enumerate(batches):
        losses.append(float(measure(jax.tree.unflatten(tree, leaves), tokens)))
        gradients = differentiate(leaves, tree, tokens)
        norms.append(float(np.sqrt(sum((gradient**2).sum() for gradient in gradients))))
        for n, gradient in enumerate(gradients):
            clipped = gradient * min(1.0, config.clip_norm / norms[-1])
            first[n] = 0.9 * first[n] + 0.1 * clipped
            second[n] = config.beta2 * second[n] + (1 - config.beta2) * clipped**2
            mean, square = first[n] / (1 - 0.9 ** (step + 1)), second[n] / (1 - config.beta2 ** (step + 1))
            decay = config.weight_decay * leaves[n] if decays[n] else 0.0
            leaves[n] = leaves[n] - rate(config, step) * (mean / (np.sqrt(square) + 1e-8) + decay)
    return losses, norms


def draw_batch() -> NDArray[np.int32]:
    return np.random.default_rng(0).integers(0, 7, (4, 5), dtype=np.int32)


@pytest.fixture(scope="module")
def expected() -> list[float]:
    """The losses of the reference, from the parameters of seed 0, on one batch again and again."""
    program = make_program(CONFIG, find_task(CONFIG), make_mesh(MeshShape()))
    start = nnx.to_pure_dict(nnx.state(program.model(program.initialize(0)), nnx.Param))
    losses, norms = train(CONFIG, jax.tree.map(np.float64, start), [draw_batch()] * STEPS)
    assert min(norms) > CONFIG.clip_norm  # or nothing would be clipped
    assert abs(losses[-1] / losses[1] - 1) > 0.01  # a thousand tolerances, or wrong steps would pass
    return losses


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.slow
def test_losses_of_a_gpt_are_those_of_numpy_whole_and_by_microbatch(parts: int, expected: list[float]) -> None:
    config = dataclasses.replace(CONFIG, compute=Compute(accumulate=parts))
    program = make_program(config, find_task(config), make_mesh(MeshShape()))
    _, losses = run_steps(program, [{"tokens": draw_batch()}] * STEPS)
    # Adam divides by gradients, of which float32 keeps five digits where they nearly cancel.
    assert losses == pytest.approx(expected, rel=1e-5)
