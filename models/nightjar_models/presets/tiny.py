"""Which configurations train within a minute on two CPU cores?

Each docstring states the command, the hardware, the time, the expected number with its spread over seeds, and the
trivial baseline that it has to beat.
"""

from __future__ import annotations

from nightjar_models.config import TrainConfig
from nightjar_models.sizes import GPTConfig, LlamaConfig, ViTConfig


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


def llama_tiny() -> TrainConfig:
    """A byte-level Llama on English text: rotary positions, grouped heads, gated feed-forward layers.

    Command: nightjar-models train llama_tiny --seed 0 --out OUT
    Hardware: two CPU cores, 0.7 GB of memory.
    Time: not measured yet.
    Expected: eval_loss below 2.2 nats per byte.
    Trivial: 3.157 by byte frequencies, 2.479 by pairs of bytes.
    """
    return TrainConfig(
        workload="llama_tiny",
        model=LlamaConfig(length=64, width=96, layers=2, heads=4, groups=2, feed_forward=256),
        steps=200,
        schedule_steps=200,
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
