"""Which configurations ship, and what is expected of each?

A preset is a function; its docstring states the command, the hardware, the time, the expected number with its spread
over seeds, and the trivial baseline that it has to beat. `PRESETS` lists them.
"""

from __future__ import annotations

from collections.abc import Callable

from nightjar_models.config import GPTConfig, TrainConfig, ViTConfig
from nightjar_models.errors import InputError, did_you_mean


def gpt_tiny() -> TrainConfig:
    """A byte-level GPT on English text: 278 thousand parameters, 0.6 million bytes seen.

    Command: nightjar-models train gpt_tiny --seed 0 --out OUT
    Hardware: two CPU cores, 0.7 GB of memory.
    Time: 30 s (16 s of steps).
    Expected: eval_loss 1.817 +- 0.023 nats per byte (1.796 to 1.867) over ten seeds.
    Trivial: 3.157 by byte frequencies, 2.479 by pairs of bytes.
    """
    return TrainConfig(
        workload="gpt_tiny",
        model=GPTConfig(length=64, width=96, layers=2, heads=4, feed_forward=384),
        steps=300,
        schedule_steps=300,
        warmup_steps=40,
        batch_size=32,
        learning_rate=3e-3,
    )


def vit_tiny() -> TrainConfig:
    """A vision transformer on handwritten digits: 101 thousand parameters, 27 epochs of shifted images.

    Command: nightjar-models train vit_tiny --seed 0 --out OUT
    Hardware: two CPU cores, 0.7 GB of memory.
    Time: 16 s (8 s of steps).
    Expected: eval_accuracy 0.966 +- 0.011 (0.951 to 0.982) over ten seeds, on the hands of other writers.
    Trivial: 0.102, always the most frequent digit.
    """
    return TrainConfig(
        workload="vit_tiny",
        model=ViTConfig(patch=4, width=64, layers=3, heads=4, feed_forward=128),
        steps=600,
        schedule_steps=600,
        warmup_steps=40,
        batch_size=64,
        learning_rate=3e-3,
        weight_decay=0.3,
    )


PRESETS: dict[str, Callable[[], TrainConfig]] = {preset.__name__: preset for preset in (gpt_tiny, vit_tiny)}


def find_preset(name: str) -> Callable[[], TrainConfig]:
    """The preset of that name.

    Raises:
        InputError: there is none.
    """
    if name not in PRESETS:
        raise InputError(f"unknown preset {name!r}: expected one of {', '.join(PRESETS)}.", did_you_mean(name, PRESETS))
    return PRESETS[name]
