"""Configurations that ship, with their expected results.

A preset is a function; its docstring states the command, the hardware, the time, the expected number with its spread
over seeds, and the trivial baseline that it has to beat. `PRESETS` lists them: `tiny.py` for two CPU cores, `large.py`
for GPUs.
"""

from __future__ import annotations

from collections.abc import Callable

from nightjar_models.errors import InputError, did_you_mean
from nightjar_models.presets import large, tiny
from nightjar_models.presets.config import TrainConfig

_PRESETS = (
    *(tiny.gpt_tiny, tiny.vit_tiny, tiny.llama_tiny, tiny.moe_tiny, tiny.t5_tiny, tiny.diffusion_tiny, tiny.vae_tiny),
    *(large.gpt3_126m, large.gpt3_5b),
    *(large.llama_125m, large.llama2_7b, large.llama2_70b, large.llama3_8b, large.llama3_70b),
    *(large.moe_8x7b, large.t5_large, large.vit_b16, large.diffusion_500m, large.vae_large),
)
PRESETS: dict[str, Callable[[], TrainConfig]] = {preset.__name__: preset for preset in _PRESETS}


def find_preset(name: str) -> Callable[[], TrainConfig]:
    """The preset of that name."""
    if name not in PRESETS:
        raise InputError(f"unknown preset {name!r}: expected one of {', '.join(PRESETS)}.", did_you_mean(name, PRESETS))
    return PRESETS[name]
