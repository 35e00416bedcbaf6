"""Optax's optimizers, schedules and losses against their formulas in NumPy, over several steps.

Source: Kingma and Ba 2015, algorithm 1 (Adam); Loshchilov and Hutter 2019, algorithm 2 (AdamW); Dozat 2016 (Nesterov's
momentum in Adam); Sutskever et al. 2013 (momentum); Pascanu et al. 2013 (clipping); Loshchilov and Hutter 2017,
equation 5 (cosine).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nightjar_models.conformance.agreement import BFLOAT16, assert_close, draw

STEPS = 120  # a rule that changes after a hundred steps is seen
PARAMS = {"kernel": draw(3, 2), "bias": draw(2)}
GRADIENTS = [{"kernel": draw(3, 2, seed=step), "bias": draw(2, seed=step)} for step in range(1, STEPS + 1)]
Tree = dict[str, Any]
# `1 - 0.999` in float32 is wrong by 6e-8, which is 6e-5 of it; the root halves that, and the rates are 0.1 to 0.4.
TOLERANCE = 2e-5


def run(tx: Any, gradients: list[Tree] = GRADIENTS, params: Tree = PARAMS, start: int = 0) -> list[Tree]:
    """The parameters after each step, in the loop that Optax's documentation teaches; steps count from `start`."""

    @jax.jit
    def step(params: Tree, state: Any, gradient: Tree) -> tuple[Tree, Any]:
        updates, state = tx.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    state, seen = tx.init(params), []
    if start:
        state = optax.tree_utils.tree_set(state, count=jnp.asarray(start))
    for gradient in gradients:
        params, state = step(params, state, gradient)
        seen.append(params)
    return seen


def assert_steps(
    tx: Any, rule: Callable[[int, Any, Any, Any, str], tuple[Any, Any]], memory: Any = 0.0, start: int = 0
) -> None:
    """Compares each step of each parameter with `rule(count from start, parameter, gradient, memory, name)`."""
    seen = run(tx, start=start)
    for name in PARAMS:
        value, kept = PARAMS[name].astype(np.float64), memory
        for count, gradient in enumerate(GRADIENTS):
            value, kept = rule(start + count, value, gradient[name].astype(np.float64), kept, name)
            assert_close(seen[count][name], value, TOLERANCE)


def test_sgd() -> None:
    assert_steps(optax.sgd(0.3), lambda count, value, gradient, kept, name: (value - 0.3 * gradient, kept))


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_momentum(nesterov: bool) -> None:
    def rule(count: int, value: Any, gradient: Any, trace: Any, name: str) -> tuple[Any, Any]:
        trace = gradient + 0.9 * trace
        direction = gradient + 0.9 * trace if nesterov else trace
        return value - 0.1 * direction, trace

    assert_steps(optax.sgd(0.1, momentum=0.9, nesterov=nesterov), rule)


def adam(
    rate: Callable[[int], float],
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    decay: Callable[[str], float] = lambda name: 0.0,
    nesterov: bool = False,
) -> Callable[[int, Any, Any, Any, str], tuple[Any, Any]]:
    def rule(count: int, value: Any, gradient: Any, moments: Any, name: str) -> tuple[Any, Any]:
        first, second = moments
        first, second = b1 * first + (1 - b1) * gradient, b2 * second + (1 - b2) * gradient**2
        mean, square = first / (1 - b1 ** (count + 1)), second / (1 - b2 ** (count + 1))
        if nesterov:
            mean = b1 * first / (1 - b1 ** (count + 2)) + (1 - b1) * gradient / (1 - b1 ** (count + 1))
        direction = mean / (np.sqrt(square + eps_root) + eps) + decay(name) * value
        return value - rate(count) * direction, (first, second)

    return rule


@pytest.mark.parametrize("start", [0, 5_000])
def test_adam(start: int) -> None:
    assert_steps(optax.adam(0.1), adam(lambda count: 0.1), (0.0, 0.0), start)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_arguments(name: str) -> None:
    make = getattr(optax, name)
    decay = {"weight_decay": 0.0} if name == "adamw" else {}
    tx = make(0.1, b1=0.8, b2=0.95, eps=0.1, eps_root=0.01, **decay)
    assert_steps(tx, adam(lambda count: 0.1, b1=0.8, b2=0.95, eps=0.1, eps_root=0.01), (0.0, 0.0))
    assert_steps(make(0.1, nesterov=True, **decay), adam(lambda count: 0.1, nesterov=True), (0.0, 0.0))


@pytest.mark.parametrize("name", ["adam", "adamw", "nadam", "nadamw"])
def test_adam_default_epsilon_and_decay(name: str) -> None:
    tiny = {"w": np.full(2, 1e-8, np.float32)}  # as large as epsilon: the step is half the rate
    (seen,) = run(getattr(optax, name)(0.5), [tiny], {"w": np.ones(2, np.float32)})
    direction = 0.5 * (1 + 0.9 * 0.1 / (1 - 0.9**2) if name.startswith("n") else 1)
    assert_close(seen["w"], np.full(2, 1 - 0.5 * (direction + 1e-4 * name.endswith("w"))), 1e-5)


def test_adam_moments_in_bfloat16() -> None:
    tx = optax.adam(0.1, mu_dtype=jnp.bfloat16)
    state = tx.init(PARAMS)
    assert state[0].mu["bias"].dtype == jnp.bfloat16
    assert state[0].nu["bias"].dtype == jnp.float32
    exact = run(optax.adam(0.1))
    for count, params in enumerate(run(tx, GRADIENTS[:4])):
        assert_close(params["kernel"], exact[count]["kernel"], 0.1 * (count + 1) * 4 * BFLOAT16)


def test_adamw() -> None:
    assert_steps(optax.adamw(0.1), adam(lambda count: 0.1, decay=lambda name: 1e-4), (0.0, 0.0))


def test_adamw_decay_and_its_mask() -> None:
    tx = optax.adamw(0.1, b1=0.95, b2=0.9, weight_decay=0.3, mask={"kernel": True, "bias": False})
    rule = adam(lambda count: 0.1, b1=0.95, b2=0.9, decay=lambda name: 0.3 if name == "kernel" else 0.0)
    assert_steps(tx, rule, (0.0, 0.0))
    by_shape = optax.adamw(0.1, b1=0.95, b2=0.9, weight_decay=0.3, mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p))
    assert_steps(by_shape, rule, (0.0, 0.0))


def test_adamw_with_a_schedule() -> None:
    tx = optax.adamw(optax.linear_schedule(0.1, 0.4, transition_steps=30), weight_decay=0.1)
    assert_steps(tx, adam(lambda count: 0.1 + min(count, 30) / 100, decay=lambda name: 0.1), (0.0, 0.0))


def test_add_decayed_weights() -> None:
    tx = optax.chain(optax.add_decayed_weights(0.2, mask={"kernel": True, "bias": False}), optax.sgd(0.5))
    assert_steps(
        tx, lambda count, value, gradient, _, name: (value - 0.5 * (gradient + 0.2 * (name == "kernel") * value), _)
    )


@pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated")
def test_global_norm_and_clip_by_global_norm() -> None:
    norm = np.sqrt(sum((value.astype(np.float64) ** 2).sum() for value in PARAMS.values()))
    assert_close(optax.global_norm(PARAMS), norm)
    for limit in (norm / 3, norm * 3):
        clip = optax.clip_by_global_norm(limit)
        clipped, _ = clip.update(PARAMS, clip.init(PARAMS))
        factor = min(1.0, limit / norm)
        for name, value in PARAMS.items():
            assert_close(clipped[name], factor * value)


def test_chain_applies_in_order() -> None:
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.add_decayed_weights(0.1), optax.sgd(0.2))
    (seen,) = run(tx, GRADIENTS[:1])
    norm = np.sqrt(sum((value.astype(np.float64) ** 2).sum() for value in GRADIENTS[0].values()))
    for name, value in PARAMS.items():
        assert_close(seen[name], value - 0.2 * (GRADIENTS[0][name] * 0.5 / norm + 0.1 * value))


def test_clip() -> None:
    clip = optax.clip(0.5)
    clipped, _ = clip.update(PARAMS, clip.init(PARAMS))
    assert_close(clipped["kernel"], np.clip(PARAMS["kernel"], -0.5, 0.5), 0)


@pytest.mark.parametrize("mean", [True, False])
def test_multi_steps(mean: bool) -> None:
    tx = optax.MultiSteps(optax.sgd(0.1), every_k_schedule=2, use_grad_mean=mean)
    seen = run(tx)
    total = [GRADIENTS[i]["bias"].astype(np.float64) + GRADIENTS[i + 1]["bias"] for i in (0, 2)]
    rate = 0.05 if mean else 0.1
    first = PARAMS["bias"] - rate * total[0]
    for count, expected in enumerate([PARAMS["bias"], first, first, first - rate * total[1]]):
        assert_close(seen[count]["bias"], expected)
    state = tx.init(PARAMS)
    _, state = tx.update(GRADIENTS[0], state, PARAMS)
    assert (int(state.mini_step), int(state.gradient_step)) == (1, 0)
    assert not bool(tx.has_updated(state))
    _, state = tx.update(GRADIENTS[1], state, PARAMS)
    assert (int(state.mini_step), int(state.gradient_step)) == (0, 1)
    assert bool(tx.has_updated(state))


def test_inject_hyperparams() -> None:
    schedule = optax.linear_schedule(0.1, 0.3, 2)
    tx = optax.inject_hyperparams(optax.sgd)(learning_rate=schedule, momentum=0.5)
    state = tx.init(PARAMS)
    assert_close(state.hyperparams["learning_rate"], 0.1)
    trace: Any = 0.0
    params: Any = PARAMS
    for count, rate in enumerate([0.1, 0.2, 0.3]):
        updates, state = tx.update(GRADIENTS[count], state, params)
        trace = GRADIENTS[count]["bias"] + 0.5 * trace
        assert_close(updates["bias"], -rate * trace)
    assert_close(state.hyperparams["learning_rate"], 0.3)
    assert_close(state.hyperparams["momentum"], 0.5)
    plain = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)
    state = plain.init(PARAMS)
    state.hyperparams["learning_rate"] = jnp.asarray(1.0)
    updates, _ = plain.update(GRADIENTS[0], state, PARAMS)
    assert_close(updates["bias"], -GRADIENTS[0]["bias"])


@pytest.mark.parametrize("name", ["multi_transform", "partition"])
def test_multi_transform_and_partition(name: str) -> None:
    transforms = {"train": optax.sgd(0.1), "freeze": optax.set_to_zero()}
    for labels in ({"kernel": "freeze", "bias": "train"}, lambda params: {"kernel": "freeze", "bias": "train"}):
        seen = run(getattr(optax, name)(transforms, labels), GRADIENTS[:2])
        assert_close(seen[1]["kernel"], PARAMS["kernel"], 0)
        assert_close(seen[1]["bias"], PARAMS["bias"] - 0.1 * (GRADIENTS[0]["bias"] + GRADIENTS[1]["bias"]))


def test_identity_set_to_zero_and_empty_state() -> None:
    identity, zero = optax.identity(), optax.set_to_zero()
    state = identity.init(PARAMS)
    assert isinstance(state, optax.EmptyState)
    assert isinstance(identity, optax.GradientTransformation)
    assert_close(identity.update(GRADIENTS[0], state)[0]["bias"], GRADIENTS[0]["bias"], 0)
    assert_close(zero.update(GRADIENTS[0], zero.init(PARAMS))[0]["bias"], np.zeros(2), 0)


def test_apply_updates() -> None:
    params = {"w": jnp.ones(3, jnp.bfloat16), "none": None}
    new = optax.apply_updates(params, {"w": jnp.full(3, 0.5, jnp.float32), "none": None})
    assert new["w"].dtype == jnp.bfloat16  # parameters keep their dtype
    assert_close(new["w"].astype(jnp.float32), np.full(3, 1.5), 0)
    assert new["none"] is None


SCHEDULES: dict[str, tuple[Any, Callable[[int], float]]] = {
    "constant": (optax.constant_schedule(0.3), lambda count: 0.3),
    "linear": (optax.linear_schedule(1.0, 0.2, 8), lambda count: 1 - 0.8 * min(count, 8) / 8),
    "linear_begin": (
        optax.linear_schedule(0.0, 1.0, transition_steps=4, transition_begin=3),
        lambda count: min(max(count - 3, 0), 4) / 4,
    ),
    "cosine": (optax.cosine_decay_schedule(2.0, 10), lambda count: 1 + np.cos(np.pi * min(count, 10) / 10)),
    "cosine_alpha": (
        optax.cosine_decay_schedule(2.0, 10, alpha=0.1),
        lambda count: 2 * (0.9 * (1 + np.cos(np.pi * min(count, 10) / 10)) / 2 + 0.1),
    ),
    "join": (
        optax.join_schedules([optax.linear_schedule(0.0, 1.0, 4), optax.cosine_decay_schedule(1.0, 6)], [4]),
        lambda count: count / 4 if count < 4 else (1 + np.cos(np.pi * min(count - 4, 6) / 6)) / 2,
    ),
    "warmup_cosine": (
        optax.warmup_cosine_decay_schedule(0.1, 1.0, warmup_steps=4, decay_steps=12, end_value=0.2),
        lambda count: 0.1 + 0.9 * count / 4 if count < 4 else 0.2 + 0.4 * (1 + np.cos(np.pi * min(count - 4, 8) / 8)),
    ),
    "exponential": (optax.schedules.exponential_decay(1.0, 4, 0.5), lambda count: 0.5 ** (count / 4)),
    "piecewise": (
        optax.schedules.piecewise_constant_schedule(1.0, {3: 0.5, 7: 0.1}),
        lambda count: (0.5 if count >= 3 else 1.0) * (0.1 if count >= 7 else 1.0),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name: str) -> None:
    schedule, formula = SCHEDULES[name]
    for count in (0, 1, 2, 3, 4, 5, 7, 8, 10, 15):
        assert_close(schedule(jnp.asarray(count)), formula(count), 1e-6)


def log_softmax(x: Any) -> Any:
    x = x.astype(np.float64)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_softmax_cross_entropy() -> None:
    logits, labels = draw(4, 5), np.abs(draw(4, 5, seed=1))
    labels /= labels.sum(-1, keepdims=True)
    assert_close(optax.softmax_cross_entropy(logits, labels), -(labels * log_softmax(logits)).sum(-1))
    assert_close(optax.softmax_cross_entropy(logits.T, labels.T, axis=0), -(labels * log_softmax(logits)).sum(-1))
    far = np.array([[1e4, 0.0]], np.float32)
    assert_close(optax.softmax_cross_entropy(far, np.array([[0.0, 1.0]], np.float32)), np.array([1e4]))


def test_softmax_cross_entropy_with_integer_labels() -> None:
    logits, labels = draw(2, 3, 5), np.array([[0, 4, 2], [3, 3, 1]])
    expected = -np.take_along_axis(log_softmax(logits), labels[..., None], -1)[..., 0]
    assert_close(optax.softmax_cross_entropy_with_integer_labels(logits, labels), expected)
    gradient = jax.grad(lambda x: optax.softmax_cross_entropy_with_integer_labels(x, labels).sum())(logits)
    assert_close(gradient, np.exp(log_softmax(logits)) - np.eye(5)[labels])


def test_sigmoid_binary_cross_entropy() -> None:
    logits, labels = 3 * draw(6), np.array([0, 1, 1, 0, 1, 0], np.float32)
    p = 1 / (1 + np.exp(-logits.astype(np.float64)))
    assert_close(optax.sigmoid_binary_cross_entropy(logits, labels), -labels * np.log(p) - (1 - labels) * np.log(1 - p))


def test_kl_divergence() -> None:
    log_predictions, targets = log_softmax(draw(3, 4)), np.exp(log_softmax(draw(3, 4, seed=1)))
    targets[0] = [0.5, 0.5, 0, 0]  # the limit of 0 log 0 is 0
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(targets > 0, targets * (np.log(targets) - log_predictions), 0)
    seen = optax.kl_divergence(log_predictions.astype(np.float32), targets.astype(np.float32))
    assert_close(seen, terms.sum(-1))


def test_cosine_distance() -> None:
    x, y = draw(3, 4).astype(np.float64), draw(3, 4, seed=1).astype(np.float64)
    expected = 1 - (x * y).sum(-1) / np.linalg.norm(x, axis=-1) / np.linalg.norm(y, axis=-1)
    assert_close(optax.cosine_distance(x.astype(np.float32), y.astype(np.float32)), expected)


def test_squared_error_and_l2_loss() -> None:
    x, y = draw(3), draw(3, seed=1)
    square = (x.astype(np.float64) - y) ** 2
    assert_close(optax.squared_error(x, y), square)
    assert_close(optax.l2_loss(x, y), square / 2)
