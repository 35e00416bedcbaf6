"""Presets load, settings are typed, and a mistake in one is named."""

import inspect
import math
import re

import jax
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from nightjar_models.errors import InputError
from nightjar_models.presets import PRESETS, find_preset
from nightjar_models.presets.config import TrainConfig, flatten, override
from nightjar_models.presets.tiny import gpt_tiny
from nightjar_models.training.tasks import find_task


def test_a_setting_changes_one_number_and_keeps_its_type() -> None:
    changed = override(gpt_tiny(), ["learning_rate=1", "model.layers=4"])
    assert flatten(changed) == {**flatten(gpt_tiny()), "learning_rate": 1.0, "model.layers": 4}
    assert isinstance(changed.learning_rate, float)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_consistent_and_says_what_to_expect(name: str) -> None:
    preset = find_preset(name)
    assert override(preset(), []).workload == name
    text = inspect.getdoc(preset) or ""
    for heading in ("Command: nightjar-models train " + name, "Hardware:", "Trivial:"):
        assert heading in text
    assert ("Time:" in text and "Expected:" in text) or not name.endswith("_tiny")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("learning_rat=0.1", "unknown key 'learning_rat'.*did you mean 'learning_rate'"),
        ("workload=x", "unknown key 'workload'"),
        ("model.layers=2.5", "expected an integer"),
        ("learning_rate=fast", "expected a number"),
        ("learning_rate", "expected key=value"),
        ("batch_size=0", "batch_size: expected more than zero, found 0"),
        ("learning_rate=nan", "learning_rate: expected zero or more, found nan"),
        ("beta2=1", "beta2: expected less than one"),
        ("warmup_steps=300", "warmup_steps: expected fewer than schedule_steps"),
        ("model.heads=5", "multiple of model.heads"),
        ("compute.dtype=bf61", "compute.dtype: expected one of f32, bf16, found 'bf61'.*did you mean 'bf16'"),
        ("compute.scan_layers=yes", "expected true or false"),
        ("compute.accumulate=5", r"batch_size: expected a multiple of compute.accumulate \(5\), found 32"),
    ],
)
def test_a_wrong_setting_is_named(setting: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        override(gpt_tiny(), [setting])
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("preset", "setting", "message"),
    [
        ("vit_tiny", "model.patch=3", "model.patch: expected a divisor"),
        ("vit_tiny", "model.classes=9", "model.classes: expected at least 10 (digits), found 9"),
        ("gpt_tiny", "model.vocabulary=255", "model.vocabulary: expected at least 256 (bytes), found 255"),
        ("llama_tiny", "model.vocabulary=1", "model.vocabulary: expected at least 256 (bytes), found 1"),
        ("moe_tiny", "model.vocabulary=1", "model.vocabulary: expected at least 256 (bytes), found 1"),
        ("diffusion_tiny", "model.vocabulary=122", "model.vocabulary: expected at least 123 (letters), found 122"),
        ("t5_tiny", "model.buckets=3", "model.buckets: expected at least 4 (two directions), found 3"),
        ("t5_tiny", "model.farthest=16", "model.farthest: expected at least 17 (half of model.buckets, and one)"),
    ],
)
def test_sizes_that_do_not_fit_together_or_the_data_are_named(preset: str, setting: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        override(find_preset(preset)(), [setting])


def test_an_unknown_preset_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'gpt_tiny'"):
        find_preset("gtp_tiny")


@given(st.floats(min_value=0, max_value=1e6, allow_nan=False))
def test_a_number_survives_its_way_through_text(value: float) -> None:
    assert override(gpt_tiny(), [f"learning_rate={value!r}"]).learning_rate == value


PUBLISHED = {  # in Hugging Face's checkpoints
    "llama2_7b": 6_738_415_616,
    "llama2_70b": 68_976_648_192,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "moe_8x7b": 46_702_792_704,
    "t5_large": 783_150_080,
}
UNITS = {"thousand": 1e3, "million": 1e6, "billion": 1e9}


def count_parameters(config: TrainConfig) -> int:
    task = find_task(config)
    state = nnx.state(nnx.eval_shape(lambda: task.build(nnx.Rngs(0))), nnx.Param)
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("preset", PUBLISHED)
def test_a_published_model_has_its_parameters(preset: str) -> None:
    config = override(find_preset(preset)(), ["compute.scan_layers=true"])
    assert count_parameters(config) == PUBLISHED[preset]


SLOW = ("diffusion_tiny", "diffusion_500m")
OTHERS = [name for name in PRESETS if name not in PUBLISHED]


@pytest.mark.parametrize("preset", [pytest.param(p, marks=pytest.mark.slow) if p in SLOW else p for p in OTHERS])
def test_a_description_says_how_many_parameters_there_are(preset: str) -> None:
    said = re.search(r"([\d.]+)\s+(thousand|million|billion)\s+parameters", inspect.getdoc(find_preset(preset)) or "")
    assert said is not None
    number = float(said[1]) * UNITS[said[2]]
    assert count_parameters(find_preset(preset)()) == pytest.approx(number, rel=0.01)
