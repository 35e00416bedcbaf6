"""The seven models in plain NumPy, from their papers, by the names of the parameters of Nightjar's own.

In: parameters as a tree of dictionaries, sizes, and a batch. Out: logits, or what the model returns in their place.
Nothing here calls JAX; what the models do in one product is done here example by example or token by token.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nightjar_models.presets.sizes import DiffusionConfig, LlamaConfig, MoEConfig, T5Config
from tests.models.architectures.numpy_layers import (
    Numbers,
    Weights,
    attend,
    bucket,
    convolve,
    gelu,
    group_norm,
    join_heads,
    layer_norm,
    linear,
    look_back,
    rms_norm,
    rotate,
    self_attention,
    silu,
    softmax,
)

Integers = NDArray[np.integer[Any]]
GROUP = 8  # channels that the U-Net normalises together


def run_block(weights: Weights, x: Numbers, *, causal: bool) -> Numbers:
    """The pre-norm block of GPT, ViT and the U-Net's text encoder."""
    x = x + self_attention(weights["attention"], layer_norm(weights["attention_norm"], x), causal=causal)
    hidden = gelu(linear(weights["feed_forward"]["linear_in"], layer_norm(weights["feed_forward_norm"], x)))
    return x + linear(weights["feed_forward"]["linear_out"], hidden)


def run_gpt(weights: Weights, tokens: Integers) -> Numbers:
    table = weights["token_embedding"]["embedding"]
    x = table[tokens] + weights["position_embedding"][: tokens.shape[1]]
    for layer in sorted(weights["blocks"]):
        x = run_block(weights["blocks"][layer], x, causal=True)
    return np.asarray(layer_norm(weights["norm"], x) @ table.T)


def run_gated(weights: Weights, x: Numbers, activation: Any = silu) -> Numbers:
    """SwiGLU, or GEGLU by another activation."""
    return linear(weights["linear_out"], activation(linear(weights["gate"], x)) * linear(weights["linear_in"], x))


def attend_by_rotation(weights: Weights, x: Numbers, sizes: LlamaConfig | MoEConfig) -> Numbers:
    """What rotary attention behind its norm adds to the stream."""
    normed = rms_norm(weights["attention_norm"], x)
    return self_attention(weights["attention"], normed, causal=True, turn=lambda x: rotate(x, sizes.rope_base))


def run_moe(weights: Weights, sizes: MoEConfig, tokens: Integers) -> tuple[Numbers, Numbers]:
    x, uneven = weights["token_embedding"]["embedding"][tokens], np.zeros(len(tokens))
    for layer in sorted(weights["blocks"]):
        block = weights["blocks"][layer]
        x = x + attend_by_rotation(block, x, sizes)
        normed, added = rms_norm(block["feed_forward_norm"], x), np.zeros_like(x)
        stretches = range(0, tokens.shape[1], sizes.routing_length)
        for example in range(len(tokens)):
            for start in stretches:
                part = slice(start, start + sizes.routing_length)
                added[example, part], share = route(block, sizes, normed[example, part])
                uneven[example] += share / len(stretches)
        x = x + added
    return linear(weights["unembedding"], rms_norm(weights["norm"], x)), uneven / len(weights["blocks"])


def route(weights: Weights, sizes: MoEConfig, tokens: Numbers) -> tuple[Numbers, float]:
    """A stretch [L, D] through its experts, token by token: who comes to a full expert passes it by."""
    places = math.ceil(sizes.capacity * len(tokens) * sizes.chosen / sizes.experts)
    chances = softmax(linear(weights["router"], tokens))
    added, wanted, taken = np.zeros_like(tokens), np.zeros(sizes.experts), np.zeros(sizes.experts)
    for number, token in enumerate(tokens):
        chosen = np.argsort(-chances[number])[: sizes.chosen]
        for expert in chosen:
            wanted[expert] += 1
            if taken[expert] < places:
                taken[expert] += 1
                own = {name: {"kernel": part["kernel"][expert]} for name, part in weights["experts"].items()}
                added[number] += chances[number, expert] / chances[number, chosen].sum() * run_gated(own, token)
    shares = wanted / (len(tokens) * sizes.chosen)
    return added, float(sizes.experts * (shares * chances.mean(axis=0)).sum())


def run_t5(weights: Weights, sizes: T5Config, source: Integers, target: Integers) -> Numbers:
    """Padding is symbol 0, which the decoder starts from, too."""
    table = weights["embedding"]["embedding"]
    x, seen = table[source], source != 0

    def mix(layer: Weights, x: Numbers, others: Numbers, seen: NDArray[np.bool_], bias: Numbers | None) -> Numbers:
        query, key, value = linear(layer["query"], x), linear(layer["key"], others), linear(layer["value"], others)
        return join_heads(layer["out"], attend(query, key, value, scale=1.0, seen=seen, bias=bias))

    def shape_bias(layer: Weights, length: int, *, both_ways: bool) -> Numbers:
        rows = [
            [bucket(there - here, sizes.buckets, sizes.farthest, both_ways=both_ways) for there in range(length)]
            for here in range(length)
        ]
        return np.moveaxis(layer["table"]["embedding"][np.array(rows)], -1, 0)

    bias = shape_bias(weights["encoder_distances"], source.shape[1], both_ways=True)
    sees_source = np.broadcast_to(seen[:, None], (len(source), source.shape[1], source.shape[1]))
    for layer in sorted(weights["encoder"]):
        block = weights["encoder"][layer]
        normed = rms_norm(block["attention_norm"], x)
        x = x + mix(block["attention"], normed, normed, sees_source, bias)
        x = x + run_gated(block["feed_forward"], rms_norm(block["feed_forward_norm"], x), gelu)
    encoded = rms_norm(weights["encoder_norm"], x)
    before = np.concatenate([np.zeros_like(target[:, :1]), target[:, :-1]], axis=1)
    bias = shape_bias(weights["decoder_distances"], target.shape[1], both_ways=False)
    sees_source = np.broadcast_to(seen[:, None], (len(source), target.shape[1], source.shape[1]))
    x = table[before]
    for layer in sorted(weights["decoder"]):
        block = weights["decoder"][layer]
        normed = rms_norm(block["attention_norm"], x)
        x = x + mix(block["attention"], normed, normed, look_back(*target.shape), bias)
        x = x + mix(block["cross"], rms_norm(block["cross_norm"], x), encoded, sees_source, None)
        x = x + run_gated(block["feed_forward"], rms_norm(block["feed_forward_norm"], x), gelu)
    return linear(weights["unembedding"], rms_norm(weights["decoder_norm"], x))


def run_mlp(weights: Weights, x: Numbers) -> Numbers:
    """The VAE's networks: no activation behind the last map."""
    layers = [weights["layers"][number] for number in sorted(weights["layers"])]
    for layer in layers[:-1]:
        x = gelu(linear(layer, x))
    return linear(layers[-1], x)


def run_unet(weights: Weights, sizes: DiffusionConfig, noisy: Numbers, time: Numbers, text: Integers) -> Numbers:
    words = weights["text_embedding"]["embedding"][text] + weights["text_positions"]
    for layer in sorted(weights["text_blocks"]):
        words = run_block(weights["text_blocks"][layer], words, causal=False)
    words = layer_norm(weights["text_norm"], words)
    waves = make_waves(time, sizes.width)
    noise = linear(weights["noise"]["layers"][3], silu(linear(weights["noise"]["layers"][0], waves)))
    embedding = silu(noise + linear(weights["text_pooled"], words.mean(axis=1)))
    x, skips = convolve(weights["stem"], noisy), []
    for layer in sorted(weights["down"]):
        if layer and layer % sizes.blocks == 0:
            x = (x[:, ::2, ::2] + x[:, 1::2, ::2] + x[:, ::2, 1::2] + x[:, 1::2, 1::2]) / 4
        x = run_residual(weights["down"][layer], x, embedding, words)
        skips.append(x)
    x = run_residual(weights["middle"], x, embedding, words)
    for layer in sorted(weights["up"]):
        if layer and layer % sizes.blocks == 0:
            x = x.repeat(2, axis=1).repeat(2, axis=2)
        x = run_residual(weights["up"][layer], np.concatenate([x, skips.pop()], axis=-1), embedding, words)
    return convolve(weights["head"], silu(group_norm(weights["norm"], x, GROUP)))


def make_waves(time: Numbers, width: int) -> Numbers:
    """Half of them sines, half cosines, of rates from 1 to 1,000."""
    half = width // 2
    angles = np.array([[t * 1000 ** (n / (half - 1)) for n in range(half)] for t in time])
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)


def run_residual(weights: Weights, x: Numbers, embedding: Numbers, words: Numbers) -> Numbers:
    """Two convolutions, the second one scaled and shifted by the embedding; then attention where the layer has it."""
    hidden = convolve(weights["first"], silu(group_norm(weights["first_norm"], x, GROUP)))
    scale, shift = np.split(linear(weights["shift"], embedding)[:, None, None], 2, axis=-1)
    hidden = group_norm(weights["second_norm"], hidden, GROUP) * (1 + scale) + shift
    x = (convolve(weights["skip"], x) if "skip" in weights else x) + convolve(weights["second"], silu(hidden))
    if "attention" not in weights:
        return x
    layer = weights["attention"]
    pixels = group_norm(layer["norm"], x, GROUP).reshape(len(x), -1, x.shape[-1])
    key, value = (
        np.concatenate([linear(layer[name], pixels), linear(layer[f"text_{name}"], words)], axis=1)
        for name in ("key", "value")
    )
    query = linear(layer["query"], pixels)
    mixed = attend(query, key, value, scale=query.shape[-1] ** -0.5)
    return x + join_heads(layer["out"], mixed).reshape(x.shape)
