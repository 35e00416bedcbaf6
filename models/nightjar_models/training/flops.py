"""Floating-point operations that a model needs, counted from its sizes alone.

In: a model's sizes. Out: the operations of one training example, two for each multiplication and addition of a matrix
product or convolution, forward and backward. Not counted are norms, activations, softmax, the optimizer,
rematerialisation and the padding of experts: MFU divides the model's own flops by the device's peak. Attention counts
all pairs of positions, as most publications do; `masked_flops` are hidden by a causal mask, nearly half.

Source: Chowdhery et al. 2022, "PaLM", appendix B (MFU).
"""

from __future__ import annotations

from nightjar_models.hardware.target import list_targets, read_target
from nightjar_models.presets.sizes import (
    DiffusionConfig,
    GPTConfig,
    LlamaConfig,
    ModelConfig,
    MoEConfig,
    T5Config,
    VAEConfig,
    ViTConfig,
)

SCALED = {"fp8": "f8", "te_delayed": "f8", "te_mxfp8": "f8", "te_nvfp4": "f4"}  # factors, by `compute.products`
BACKWARD = 2  # a product's gradients by both of its factors


def find_peak(device_kind: str, dtype: str, products: str = "plain") -> float | None:
    """The peak rate of dense matrix products of a GPU in `hardware/targets`, operations per second; None for others.

    With `products` in FP8 or FP4 it is the peak of that type, although attention and the logits are multiplied in
    `dtype`: MFU is then a lower bound. On a GPU without FP8, XLA multiplies in bfloat16.

    >>> round((find_peak("NVIDIA H100 80GB HBM3", "bf16") or 0) / 1e12)
    989
    """
    targets = (read_target(name) for name in list_targets())
    rates = next((target.flops_per_s for target in targets if target.name == device_kind), None)
    if rates is None:
        return None
    if products != "plain":
        return rates.get(SCALED[products], rates["bf16"])
    return rates.get({"f32": "tf32"}.get(dtype, dtype))


def train_flops(model: ModelConfig) -> float:
    """Operations of one training example, forward and backward."""
    return (1 + BACKWARD) * forward_flops(model)


def masked_flops(model: ModelConfig) -> float:
    """Operations of one training example, forward and backward, on pairs of positions that a causal mask hides.

    >>> masked_flops(VAEConfig(image=8, feed_forward=10, latent=2))
    0.0
    """
    match model:
        case GPTConfig(length=T, width=D) | LlamaConfig(length=T, width=D) | MoEConfig(length=T, width=D):
            hidden = _attention(T, T - 1, D) / 2
        case T5Config(target_length=T):
            hidden = _attention(T, T - 1, model.heads * model.head_width) / 2
        case _:
            return 0.0
    return (1 + BACKWARD) * model.layers * hidden


def forward_flops(model: ModelConfig) -> float:
    """Operations of one example, forward.

    >>> forward_flops(VAEConfig(image=8, feed_forward=10, latent=2))
    3080.0
    """
    match model:
        case GPTConfig(length=T, width=D, vocabulary=V):
            return 2.0 * T * D * V + _transformer(model.layers, T, D, model.feed_forward)
        case LlamaConfig(length=T, width=D, feed_forward=F):
            return 2.0 * T * D * model.vocabulary + model.layers * (_grouped_attention(model) + 6.0 * T * D * F)
        case MoEConfig(length=T, width=D, feed_forward=F):
            experts = T * (2.0 * D * model.experts + model.chosen * 6.0 * D * F)
            return 2.0 * T * D * model.vocabulary + model.layers * (_grouped_attention(model) + experts)
        case T5Config():
            return _encoder_decoder(model)
        case ViTConfig(width=D):
            patches = (model.image // model.patch) ** 2
            ends = 2.0 * patches * model.patch**2 * model.channels * D + 2.0 * D * model.classes
            return ends + _transformer(model.layers, patches, D, model.feed_forward)
        case DiffusionConfig():
            return _unet(model)
        case VAEConfig(feed_forward=F, latent=Z):
            pixels = model.image**2
            return 2.0 * (pixels * F + F * F + F * 2 * Z + Z * F + F * F + F * pixels)


def _attention(queries: int, keys: int, width: int) -> float:
    """Scores and weighted sums, over all heads."""
    return 4.0 * queries * keys * width


def _transformer(layers: int, length: int, width: int, feed_forward: int) -> float:
    """Plain layers: four projections and two matrices."""
    per_token = 8.0 * width * width + 4.0 * width * feed_forward
    return layers * (length * per_token + _attention(length, length, width))


def _grouped_attention(model: LlamaConfig | MoEConfig) -> float:
    T, D = model.length, model.width
    keys = D // model.heads * model.groups
    return T * (4.0 * D * D + 4.0 * D * keys) + _attention(T, T, D)


def _encoder_decoder(model: T5Config) -> float:
    S, T, D, F = model.length, model.target_length, model.width, model.feed_forward
    heads = model.heads * model.head_width
    projection = 2.0 * D * heads
    encoder = S * (4 * projection + 6.0 * D * F) + _attention(S, S, heads)
    decoder = T * 4 * projection + _attention(T, T, heads)
    cross = 2 * projection * (T + S) + _attention(T, S, heads)
    return model.layers * (encoder + decoder + cross + 6.0 * T * D * F) + 2.0 * T * D * model.vocabulary


def _unet(model: DiffusionConfig) -> float:
    D, W, L = model.width, model.text_width, model.text_length
    E = 4 * D
    total = _transformer(model.text_layers, L, W, 4 * W) + 2.0 * (D * E + E * E + W * E)
    total += 2 * _convolution(model.image, model.channels, D)  # the stem, and the head as its mirror image

    def layer(level: int, before: int) -> float:
        side, out = model.image >> level, (level + 1) * D
        flops = _convolution(side, before, out) + _convolution(side, out, out) + 4.0 * E * out
        if before != out:
            flops += 2.0 * before * out * side**2
        if level >= model.levels - model.attention_levels:
            pixels = side**2
            flops += 8.0 * pixels * out * out + 4.0 * L * W * out + _attention(pixels, pixels + L, out)
        return flops

    skips, channels = [D], D
    for level in range(model.levels):
        for _ in range(model.blocks):
            total += layer(level, channels)
            channels = (level + 1) * D
            skips.append(channels)
    total += layer(model.levels - 1, channels)
    for level in reversed(range(model.levels)):
        for _ in range(model.blocks):
            total += layer(level, channels + skips.pop())
            channels = (level + 1) * D
    return total


def _convolution(side: int, channels: int, out: int) -> float:
    """Three by three taps; taps outside the image are not counted."""
    return 2.0 * channels * out * (3 * side - 2) ** 2
