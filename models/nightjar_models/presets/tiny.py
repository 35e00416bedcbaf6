"""Configurations that train within a minute on two CPU cores.

Each docstring states the command, the hardware, the time, the expected number with its spread over seeds, and the
trivial baseline that it has to beat.
"""

from __future__ import annotations

from nightjar_models.presets.config import Source, TrainConfig
from nightjar_models.presets.sizes import (
    DiffusionConfig,
    GPTConfig,
    LlamaConfig,
    MoEConfig,
    T5Config,
    VAEConfig,
    ViTConfig,
)


def gpt_tiny() -> TrainConfig:
    """A byte-level GPT on English text: 255 thousand parameters, 0.6 million bytes seen.

    Command: nightjar-models train gpt_tiny --seed 0 --out OUT
    Hardware: two CPU cores, 0.7 GB of memory.
    Time: 25 s of CPU.
    Expected: eval_loss 2.148 +- 0.034 nats per byte over ten seeds.
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
    """A byte-level Llama on English text: 252 thousand parameters, 0.4 million bytes seen.

    Command: nightjar-models train llama_tiny --seed 0 --out OUT
    Hardware: two CPU cores, 0.7 GB of memory.
    Time: 50 s of CPU on a busy machine (an idle one takes about half).
    Expected: eval_loss 1.713 +- 0.020 nats per byte over ten seeds.
    Trivial: 3.157 by byte frequencies, 2.479 by pairs of bytes.
    """
    return TrainConfig(
        workload="llama_tiny",
        model=LlamaConfig(length=64, width=96, layers=2, heads=4, groups=2, feed_forward=256),
        data=Source(loader="workers"),
        steps=200,
        schedule_steps=200,
        warmup_steps=40,
        batch_size=32,
        learning_rate=3e-3,
        beta2=0.95,
    )


def vit_tiny() -> TrainConfig:
    """A vision transformer on handwritten digits: 103 thousand parameters, 36 epochs of shifted images.

    Dropout 0.1, labels smoothed by 0.1.

    Command: nightjar-models train vit_tiny --seed 0 --out OUT
    Hardware: two CPU cores, 0.7 GB of memory.
    Time: 18 s of CPU.
    Expected: eval_accuracy 0.958 +- 0.006 over ten seeds, on the hands of other writers.
    Trivial: 0.102, always the most frequent digit.
    """
    return TrainConfig(
        workload="vit_tiny",
        model=ViTConfig(patch=4, width=64, layers=3, heads=4, feed_forward=128, dropout=0.1, smoothing=0.1),
        optimizer="sgd",
        steps=400,
        schedule_steps=400,
        warmup_steps=40,
        batch_size=128,
        learning_rate=0.1,
        weight_decay=1e-3,
    )


def moe_tiny() -> TrainConfig:
    """A byte-level decoder, each byte sent to two of eight experts per layer: 549 thousand parameters.

    Command: nightjar-models train moe_tiny --seed 0 --out OUT
    Hardware: two CPU cores, 0.8 GB of memory.
    Time: 60 s of CPU on a busy machine (an idle one takes about half).
    Expected: eval_loss 1.958 +- 0.031 nats per byte over ten seeds.
    Trivial: 3.157 by byte frequencies, 2.479 by pairs of bytes.
    """
    return TrainConfig(
        workload="moe_tiny",
        model=MoEConfig(
            length=64, width=96, layers=2, heads=4, groups=2, feed_forward=96, experts=8, routing_length=64
        ),
        data=Source(loader="sampler"),
        optimizer="muon",
        steps=200,
        schedule_steps=200,
        warmup_steps=40,
        batch_size=24,
        learning_rate=3e-3,
    )


def t5_tiny() -> TrainConfig:
    """An encoder-decoder that restores left-out vowels: 450 thousand parameters, 19,200 stretches of text seen.

    Command: nightjar-models train t5_tiny --seed 0 --out OUT
    Hardware: two CPU cores, 0.8 GB of memory.
    Time: 30 s of CPU.
    Expected: eval_loss 1.247 +- 0.014 nats per letter, accuracy 0.601 +- 0.003, over ten seeds.
    Trivial: 2.925 by letter frequencies, 2.464 by pairs; accuracy 0.226.
    """
    return TrainConfig(
        workload="t5_tiny",
        model=T5Config(
            vocabulary=32, length=12, target_length=16, width=96, layers=2, heads=4, head_width=24, feed_forward=192
        ),
        data=Source(loader="arrayrecord"),
        optimizer="adafactor",
        steps=300,
        schedule_steps=300,
        warmup_steps=40,
        batch_size=64,
        learning_rate=1e-2,
    )


def diffusion_tiny() -> TrainConfig:
    """A text-conditioned diffusion U-Net that draws handwritten digits by their names: 139 thousand parameters.

    Command: nightjar-models train diffusion_tiny --seed 0 --out OUT
    Hardware: two CPU cores, 0.8 GB of memory.
    Time: 90 s of CPU on a busy machine, half of it compiling (an idle one takes about half).
    Expected: eval_loss 0.298 +- 0.003 over ten seeds.
    Trivial: 0.382, the best linear denoiser.
    """
    return TrainConfig(
        workload="diffusion_tiny",
        model=DiffusionConfig(width=16, levels=2, blocks=1, heads=4, text_width=32, text_layers=1),
        accumulate_steps=2,
        steps=500,
        schedule_steps=500,
        warmup_steps=40,
        batch_size=64,
        learning_rate=3e-3,
    )


def vae_tiny() -> TrainConfig:
    """A variational autoencoder of handwritten digits, ink or no ink: 919 thousand parameters.

    Command: nightjar-models train vae_tiny --seed 0 --out OUT
    Hardware: two CPU cores, 0.6 GB of memory.
    Time: 14 s of CPU.
    Expected: eval_loss 18.29 +- 0.14 nats per image over ten seeds.
    Trivial: 24.18, each pixel by its frequency.
    """
    return TrainConfig(
        workload="vae_tiny",
        model=VAEConfig(feed_forward=640, latent=8),
        optimizer="injected",
        steps=500,
        schedule_steps=500,
        warmup_steps=40,
        batch_size=128,
        learning_rate=2e-3,
    )
