"""Each preset has as many parameters as its description says; published models have exactly theirs."""

import inspect
import math
import re

import jax
import pytest
from flax import nnx

from nightjar_models.presets import PRESETS, find_preset
from nightjar_models.presets.config import TrainConfig, override
from nightjar_models.training.tasks import find_task

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
