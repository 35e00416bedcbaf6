"""Checkpoints of toy size and their logits, by transformers alone; runs in an environment of its own.

In: sizes of the models as JSON, and a folder, on the command line. Out: for each model `NAME.safetensors`, with names
and layout of PyTorch's checkpoints, and `NAME.npz` with inputs and logits. All weights are random, those of norms and
biases too, so that a swapped or forgotten one shows.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import transformers  # type: ignore[import-not-found,unused-ignore]
from safetensors.numpy import save_file  # type: ignore[import-not-found,unused-ignore]

EPSILON = 1e-5


def make_gpt2(size: dict[str, int]) -> tuple[Any, Any]:
    """A GPT-2 of random weights, its inputs and logits."""
    config = transformers.GPT2Config(
        vocab_size=size["vocabulary"],
        n_positions=size["length"],
        n_embd=size["width"],
        n_layer=size["layers"],
        n_head=size["heads"],
        n_inner=size["feed_forward"],
        layer_norm_epsilon=EPSILON,
    )
    model = randomize(transformers.FlaxGPT2LMHeadModel(config, seed=0))
    tokens = draw(size["vocabulary"], (3, size["length"]))
    return model, {"tokens": tokens, "logits": model(tokens).logits}


def make_llama(size: dict[str, Any]) -> tuple[Any, Any]:
    """A Llama with grouped heads."""
    config = transformers.LlamaConfig(
        vocab_size=size["vocabulary"],
        hidden_size=size["width"],
        intermediate_size=size["feed_forward"],
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        num_key_value_heads=size["groups"],
        max_position_embeddings=size["length"],
        rope_theta=size["rope_base"],
        rms_norm_eps=EPSILON,
    )
    model = randomize(transformers.FlaxLlamaForCausalLM(config, seed=0))
    tokens = draw(size["vocabulary"], (3, size["length"]))
    return model, {"tokens": tokens, "logits": model(tokens).logits}


def make_t5(size: dict[str, int]) -> tuple[Any, Any]:
    """A T5 1.1, its source with padding."""
    config = transformers.T5Config(
        vocab_size=size["vocabulary"],
        d_model=size["width"],
        d_kv=size["head_width"],
        d_ff=size["feed_forward"],
        num_layers=size["layers"],
        num_heads=size["heads"],
        relative_attention_num_buckets=size["buckets"],
        relative_attention_max_distance=size["farthest"],
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        layer_norm_epsilon=EPSILON,
        decoder_start_token_id=0,
    )
    model = randomize(transformers.FlaxT5ForConditionalGeneration(config, seed=0))
    source = np.maximum(draw(size["vocabulary"], (3, 40)), 1)
    source[1, 25:] = 0
    target = np.maximum(draw(size["vocabulary"], (3, 30)), 1)
    before = np.pad(target[:, :-1], ((0, 0), (1, 0)))
    logits = model(source, attention_mask=(source != 0).astype(np.int32), decoder_input_ids=before).logits
    return model, {"source": source, "target": target, "logits": logits}


def make_vit(size: dict[str, int]) -> tuple[Any, Any]:
    """A ViT, of which everything is used but the class token: the mean over patches is classified."""
    from transformers.models.vit.modeling_flax_vit import (  # type: ignore[import-not-found,unused-ignore]
        FlaxViTEncoder,
        FlaxViTPatchEmbeddings,
    )

    config = transformers.ViTConfig(
        image_size=size["image"],
        num_channels=size["channels"],
        patch_size=size["patch"],
        hidden_size=size["width"],
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        intermediate_size=size["feed_forward"],
        num_labels=size["classes"],
        layer_norm_eps=EPSILON,
        hidden_act="gelu_new",
    )
    model = randomize(transformers.FlaxViTForImageClassification(config, seed=0))
    images = np.random.default_rng(1).uniform(-1, 1, (3, size["image"], size["image"], size["channels"]))
    params = model.params["vit"]
    embeddings = params["embeddings"]
    patches = FlaxViTPatchEmbeddings(config).apply(
        {"params": embeddings["patch_embeddings"]}, images.astype(np.float32)
    )
    x = patches + embeddings["position_embeddings"][:, 1:]
    x = FlaxViTEncoder(config).apply({"params": params["encoder"]}, x).last_hidden_state
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    x = (x - mean) / np.sqrt(variance + EPSILON) * params["layernorm"]["scale"] + params["layernorm"]["bias"]
    classifier = model.params["classifier"]
    return model, {"images": images, "logits": x.mean(1) @ classifier["kernel"] + classifier["bias"]}


MAKERS = {"gpt_tiny": make_gpt2, "llama_tiny": make_llama, "t5_tiny": make_t5, "vit_tiny": make_vit}


def draw(count: int, shape: tuple[int, int]) -> Any:
    """Random tokens."""
    return np.random.default_rng(0).integers(0, count, shape, dtype=np.int32)


def randomize(model: Any) -> Any:
    """The model with every weight moved at random, and each matrix kept near its scale."""
    leaves, tree = jax.tree_util.tree_flatten(model.params)
    keys = jax.random.split(jax.random.PRNGKey(7), len(leaves))
    moved = [leaf + 0.1 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    model.params = jax.tree_util.tree_unflatten(tree, moved)
    return model


def name_tensors(params: Any) -> dict[str, Any]:
    """The weights with PyTorch's names and layout."""
    tensors = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        names = [entry.key for entry in path]
        value = np.asarray(leaf)
        if names[-1] == "kernel":
            value = value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T
        if names[-1] in ("kernel", "embedding", "scale"):
            names[-1] = "weight"
        tensors[".".join(names)] = np.ascontiguousarray(value)
    return tensors


def main() -> None:
    """Writes all checkpoints."""
    sizes, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    for name, make in MAKERS.items():
        model, example = make(sizes[name])
        save_file(name_tensors(model.params), folder / f"{name}.safetensors")
        arrays: dict[str, Any] = {key: np.asarray(value) for key, value in example.items()}
        np.savez(folder / f"{name}.npz", **arrays)


if __name__ == "__main__":
    main()
