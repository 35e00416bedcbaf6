"""The parts that only one workload has: routing, distances between positions, guidance, keys, weighted means."""

import re
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from nightjar_models.architectures import diffusion, moe, t5
from nightjar_models.data import noised, vowels
from nightjar_models.data.digits import load
from nightjar_models.data.pipeline import Data
from nightjar_models.errors import InputError
from nightjar_models.presets import find_preset
from nightjar_models.presets.config import Compute, override
from nightjar_models.presets.sizes import DiffusionConfig, MoEConfig, T5Config
from nightjar_models.training.step import differentiate, weigh


def route(logits: jax.Array, places: int) -> jax.Array:
    weights, experts, _ = moe.choose(logits, chosen=2)
    return moe.assign(weights, experts, count=logits.shape[-1], places=places)


def test_each_token_is_weighted_over_the_experts_that_have_a_place_for_it() -> None:
    logits = jax.random.normal(jax.random.key(0), (3, 16, 4))
    _, _, used = moe.choose(logits, chosen=2)
    shares = route(logits, places=16)
    np.testing.assert_allclose(shares.sum(axis=(2, 3)), 1.0, rtol=1e-5)
    assert ((shares > 0).sum(axis=1) <= 1).all()  # one token per place
    assert used.shape == (3,)
    assert (used >= 0.9).all()
    few = route(logits, places=2)
    assert (((few > 0).sum(axis=(1, 3))) <= 2).all()
    assert float(few.sum()) < float(shares.sum())


def test_a_later_token_never_takes_an_earlier_ones_place() -> None:
    logits = jax.random.normal(jax.random.key(0), (1, 16, 4))
    changed = logits.at[0, 9:].set(jax.random.normal(jax.random.key(1), (7, 4)))
    one, other = (np.asarray(route(x, places=4))[0, :9] for x in (logits, changed))
    np.testing.assert_array_equal(one, other)


def test_even_routing_has_an_unevenness_of_one() -> None:
    logits = 50 * jax.nn.one_hot(jnp.arange(16) % 4, 4)[None]
    both = jnp.concatenate([logits, logits.at[..., 0].set(99.0)])
    assert moe.choose(both, chosen=1)[2].tolist() == pytest.approx([1.0, 4.0])


@pytest.mark.slow
def test_sorted_tokens_are_worked_on_as_those_that_all_have_a_place() -> None:
    sizes = override(find_preset("moe_tiny")(), ["model.width=16", "model.feed_forward=8", "model.capacity=4"]).model
    assert isinstance(sizes, MoEConfig)
    x = jax.random.normal(jax.random.key(0), (2, sizes.length, 16))

    def work(experts: str) -> Any:
        block = moe.Block(sizes, Compute(experts=experts), rngs=nnx.Rngs(1))
        differentiated = nnx.value_and_grad(lambda block: (block((x, jnp.zeros(2)))[0] ** 2).mean())
        value, gradients = nnx.jit(differentiated)(block)
        return value, nnx.to_pure_dict(gradients)

    for expected, found in zip(*(jax.tree.leaves(work(experts)) for experts in ("places", "ragged")), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6 * float(jnp.abs(expected).max()))


@pytest.fixture(scope="module")
def unet() -> diffusion.UNet:
    sizes = DiffusionConfig(width=8, levels=2, blocks=1, heads=2, text_width=8, text_layers=1)
    model = diffusion.UNet(sizes, Compute(), rngs=nnx.Rngs(0))
    model.head.kernel[...] = 0.1 * jax.random.normal(jax.random.key(3), model.head.kernel.shape)  # zero at the start
    return model


def test_without_guidance_the_text_does_not_matter_and_with_it_does(unet: diffusion.UNet) -> None:
    texts, key = jnp.asarray(noised.spell(8)), jax.random.key(0)
    draw = nnx.jit(lambda model, text, guidance: diffusion.sample(model, text, key, steps=2, guidance=guidance))
    same, other = draw(unet, texts[:2], 0.0), draw(unet, texts[2:4], 0.0)
    np.testing.assert_array_equal(same, other)
    assert same.shape == (2, 8, 8, 1)
    assert float(jnp.abs(draw(unet, texts[:2], 3.0) - draw(unet, texts[2:4], 3.0)).max()) > 1e-3


def test_noise_belongs_to_the_example_not_to_its_place(unet: diffusion.UNet) -> None:
    data = noised.add_names(load(), 8, 1, 8)
    examples = [data.train[index] for index in range(4)]
    orders = ([0, 1, 2, 3], [2, 0, 3, 1])
    measure = nnx.jit(diffusion.measure)
    one, other = (
        measure(unet, {name: jnp.stack([examples[i][name] for i in order]) for name in examples[0]})["loss"]
        for order in orders
    )
    assert np.sort(one) == pytest.approx(np.sort(other), rel=1e-5)


@pytest.fixture(scope="module")
def stretches() -> Data:
    return vowels.read_vowels(20, 24, 32)


def spell(row: NDArray[np.int32]) -> str:
    return "".join(("_$" + vowels.LETTERS)[number] for number in row)


def test_a_source_is_its_target_without_vowels_ended_and_filled_up(stretches: Data) -> None:
    batch = stretches.train[np.arange(0, len(stretches.train), 999)]
    for source, target in zip(map(spell, batch["source"]), map(spell, batch["target"]), strict=True):
        assert source == re.sub("[aeiou]", "", target).ljust(20, "_")
        assert target[0] != " "
        assert target.index("$") == 23
    one = stretches.train[999]
    assert all((one[name] == batch[name][1]).all() for name in one)


def test_the_trivial_answers_of_the_vowels_are_better_the_more_they_see(stretches: Data) -> None:
    assert len(stretches.held_out) == 2048
    assert 2.0 < stretches.trivial["bigram_loss"] < stretches.trivial["unigram_loss"] < np.log(29)


def test_sizes_that_hold_no_text_are_refused() -> None:
    with pytest.raises(InputError, match=r"model.vocabulary: expected at least 29"):
        vowels.read_vowels(16, 16, 20)
    with pytest.raises(InputError, match="expected room for a stretch without its vowels"):
        vowels.read_vowels(1, 16, 32)
    with pytest.raises(InputError, match=r"model.text_length: expected at least 5"):
        noised.spell(4)


@given(st.floats(0.05, 4.0), st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_the_linear_denoiser_of_gaussian_numbers_has_the_error_of_theory(variance: float, copies: int) -> None:
    train = np.random.default_rng(0).standard_normal((4000, 2)) * variance**0.5
    angle = (np.arange(256) + 0.5) / 256 * np.pi / 2
    expected = (copies * variance / (np.cos(angle) ** 2 * copies * variance + np.sin(angle) ** 2)).mean() / copies
    assert noised.linear_loss(train, train, copies) == pytest.approx(expected, rel=0.1)


def test_targets_of_padding_alone_have_no_loss() -> None:
    sizes = T5Config(vocabulary=72, length=4, target_length=4, width=8, layers=1, heads=2, head_width=4, feed_forward=8)
    batch = {"source": jnp.array([[5, 1, 0, 0]]), "target": jnp.zeros((1, 4), jnp.int32)}
    scores = nnx.jit(t5.measure)(t5.T5(sizes, Compute(), rngs=nnx.Rngs(0)), batch)
    assert [float(value) for value in weigh(scores)] == [0, 0]


class Line(nnx.Module):
    def __init__(self) -> None:
        self.weights = nnx.Param(jnp.arange(3.0))

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.square(x @ self.weights[...])


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize(
    "counted", [[True, False, True, True, True, True, True, False], [True, False] * 4], ids=["some", "none of a part"]
)
def test_accumulated_gradients_are_weighted_as_in_the_whole_batch(counted: list[bool], parts: int) -> None:
    task: Any = SimpleNamespace(measure=lambda model, batch: {"loss": model(batch["x"]), "mask": batch["counted"]})
    batch = {"x": jax.random.normal(jax.random.key(0), (8, 3)), "counted": jnp.array(counted)}
    (one, gradients), (other, accumulated) = (differentiate(Line(), batch, task, number) for number in (1, parts))
    assert float(other) == pytest.approx(float(one), rel=1e-5)
    np.testing.assert_allclose(accumulated["weights"][...], gradients["weights"][...], rtol=1e-5)
