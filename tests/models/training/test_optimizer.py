"""The optimizers move parameters as their formulas say, written out in NumPy."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.typing import NDArray

from nightjar_models.presets.config import TrainConfig
from nightjar_models.presets.tiny import gpt_tiny
from nightjar_models.training.optimizer import (
    CONSISTENT,
    MOMENTUM,
    find_decayed,
    find_matrices,
    make_optimizer,
    make_schedule,
)

CONFIG = dataclasses.replace(
    gpt_tiny(),
    schedule_steps=10,
    warmup_steps=4,
    learning_rate=0.5,
    final_fraction=0.2,
    weight_decay=0.3,
    clip_norm=2.0,
)
Tree = dict[str, NDArray[np.float64]]
START: Tree = {"kernel": np.array([[1.0, -2.0], [0.5, 4.0]]), "bias": np.array([3.0, -1.0])}


def gradients(step: int) -> Tree:
    """Those of a step: of the second the norm is below `clip_norm`, of the others above."""
    rng = np.random.default_rng(step)
    size = 0.1 if step == 1 else 3.0
    return {name: size * rng.normal(size=value.shape) for name, value in START.items()}


def rate(config: TrainConfig, step: int) -> float:
    """A linear rise from zero, then half a cosine."""
    if step < config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    part = min(1.0, (step - config.warmup_steps) / (config.schedule_steps - config.warmup_steps))
    share = config.final_fraction + (1 - config.final_fraction) * 0.5 * (1 + np.cos(np.pi * part))
    return float(config.learning_rate * share)


def clip(config: TrainConfig, tree: Tree) -> Tree:
    norm = np.sqrt(sum((value**2).sum() for value in tree.values()))
    return {name: value * min(1.0, config.clip_norm / norm) for name, value in tree.items()}


def adamw(config: TrainConfig, steps: int) -> Tree:
    """Loshchilov and Hutter 2019, algorithm 2; the matrix decays and the bias does not."""
    x = dict(START)
    first, second = ({name: np.zeros_like(value) for name, value in x.items()} for _ in range(2))
    for step in range(steps):
        for name, g in clip(config, gradients(step)).items():
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = config.beta2 * second[name] + (1 - config.beta2) * g**2
            mean = first[name] / (1 - 0.9 ** (step + 1))
            square = second[name] / (1 - config.beta2 ** (step + 1))
            decay = config.weight_decay * x[name] if name == "kernel" else 0.0
            x[name] = x[name] - rate(config, step) * (mean / (np.sqrt(square) + 1e-8) + decay)
    return x


def sgd(config: TrainConfig, steps: int) -> Tree:
    """Nesterov's momentum in the form of Sutskever et al. 2013; decay is part of the gradient."""
    x, velocity = dict(START), {name: np.zeros_like(value) for name, value in START.items()}
    for step in range(steps):
        for name, g in clip(config, gradients(step)).items():
            decayed = g + config.weight_decay * x[name] if name == "kernel" else g
            velocity[name] = MOMENTUM * velocity[name] + decayed
            x[name] = x[name] - rate(config, step) * (decayed + MOMENTUM * velocity[name])
    return x


def run(config: TrainConfig, every: list[Tree]) -> Tree:
    optimizer = make_optimizer(config)
    x: Any = {name: jnp.asarray(value, jnp.float32) for name, value in START.items()}
    memory = optimizer.init(x)
    for g in every:
        updates, memory = optimizer.update({name: jnp.asarray(v, jnp.float32) for name, v in g.items()}, memory, x)
        x = optax.apply_updates(x, updates)
    return {name: np.asarray(value) for name, value in x.items()}


def assert_close(found: Tree, expected: Tree) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)  # float32, a few steps


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
@pytest.mark.parametrize("name", ["adamw", "injected"])
def test_adamw_is_that_of_its_paper(name: str, steps: int) -> None:
    config = dataclasses.replace(CONFIG, optimizer=name)
    assert_close(run(config, [gradients(step) for step in range(steps)]), adamw(config, steps))


def test_each_number_of_adamw_matters() -> None:
    usual = adamw(CONFIG, 3)
    for change in ({"beta2": 0.5}, {"clip_norm": 9e9}, {"weight_decay": 0.0}, {"warmup_steps": 3}):
        other = adamw(dataclasses.replace(CONFIG, **change), 3)
        assert max(float(np.abs(usual[name] - other[name]).max()) for name in usual) > 1e-3, change


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_momentum_is_that_of_nesterov(steps: int) -> None:
    config = dataclasses.replace(CONFIG, optimizer="sgd", learning_rate=0.05)
    assert_close(run(config, [gradients(step) for step in range(steps)]), sgd(config, steps))


def test_accumulated_steps_move_once_by_the_mean() -> None:
    config = dataclasses.replace(CONFIG, accumulate_steps=2)
    halves = [g for step in range(3) for g in ({k: 2 * v for k, v in gradients(step).items()}, zeros())]
    assert_close(run(config, halves), adamw(CONFIG, 3))
    assert_close(run(config, halves[:-1]), adamw(CONFIG, 2))


def zeros() -> Tree:
    return {name: np.zeros_like(value) for name, value in START.items()}


def test_the_rate_rises_and_falls() -> None:
    schedule = make_schedule(CONFIG)
    for step in range(13):
        assert float(schedule(step)) == pytest.approx(rate(CONFIG, step), rel=1e-5)


def orthogonalise(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Newton and Schulz's iteration by Jordan's coefficients: singular values become about one."""
    a, b, c = 3.4445, -4.775, 2.0315
    x = matrix / np.linalg.norm(matrix)
    for _ in range(5):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x


def test_muon_moves_each_layers_matrix_by_its_orthogonal_momentum_and_tables_by_adamw() -> None:
    config = dataclasses.replace(CONFIG, optimizer="muon", clip_norm=9e9)
    rng = np.random.default_rng(0)
    matrices, table = rng.normal(size=(2, 4, 6)), START["kernel"]

    def spell(layers: NDArray[Any], table: NDArray[Any]) -> Any:
        """Two scanned layers, whose kernels make three heads of two, and a matrix that is not in a layer."""
        query = {"kernel": jnp.asarray(layers.reshape(2, 4, 3, 2), jnp.float32)}
        return {"blocks": {"attention": {"query": query}}, "kernel": jnp.asarray(table, jnp.float32)}

    x, optimizer = spell(matrices, table), make_optimizer(config)
    memory, momentum = optimizer.init(x), np.zeros_like(matrices)
    for step in range(3):
        g = rng.normal(size=matrices.shape)
        updates, memory = optimizer.update(spell(g, gradients(step)["kernel"]), memory, x)
        x = optax.apply_updates(x, updates)
        momentum = 0.95 * momentum + 0.05 * g
        ahead = 0.95 * momentum / (1 - 0.95 ** (step + 2)) + 0.05 * g / (1 - 0.95 ** (step + 1))
        turned = np.stack([orthogonalise(layer) for layer in ahead]) * np.sqrt(6) * CONSISTENT
        matrices = matrices - rate(config, step) * (turned + config.weight_decay * matrices)
    found = np.asarray(x["blocks"]["attention"]["query"]["kernel"]).reshape(2, 4, 6)
    np.testing.assert_allclose(found, matrices, rtol=1e-3, atol=1e-4)
    # AdamW's Nesterov form without decay: a step is at most twice the rate
    assert 0 < np.abs(np.asarray(x["kernel"]) - table).max() < 2 * sum(rate(config, step) for step in range(3))


@pytest.mark.parametrize("name", ["adafactor", "muon"])
def test_the_others_descend_and_are_clipped(name: str) -> None:
    config = dataclasses.replace(CONFIG, optimizer=name, warmup_steps=1, learning_rate=0.05)
    g = gradients(0)
    scaled = {key: 1000 * value for key, value in g.items()}
    one, other = run(config, [g] * 3), run(config, [scaled] * 3)
    assert_close(one, other)  # beyond `clip_norm` only the direction counts
    assert sum(float(((one[key] - START[key]) * g[key]).sum()) for key in g) < 0


def test_muon_sums_over_the_axes_into_a_matrix_and_leaves_all_outside_of_layers() -> None:
    attention = {name: {"kernel": 0} for name in ("query", "key", "value", "out")}
    found = find_matrices({"blocks": {**attention, "linear_in": {"kernel": 0, "bias": 0}}, "head": {"kernel": 0}})
    into, out, plain = (found["blocks"][name]["kernel"] for name in ("query", "out", "linear_in"))
    assert found["blocks"]["key"]["kernel"] == found["blocks"]["value"]["kernel"] == into
    assert [(one.reduction_axis, one.output_axis) for one in (into, out, plain)] == [
        *(((-3,), (-2, -1)), ((-3, -2), (-1,)), ((-2,), (-1,)))
    ]
    assert (found["blocks"]["linear_in"]["bias"], found["head"]["kernel"]) == (None, None)


def test_matrices_and_tables_decay_by_name() -> None:
    tree = {"blocks": {0: {"kernel": 1, "scale": 1, "bias": 1}}, "embedding": 1, "position_embedding": 1}
    assert find_decayed(tree) == {
        "blocks": {0: {"kernel": True, "scale": False, "bias": False}},
        "embedding": True,
        "position_embedding": True,
    }
