"""Weights as Hugging Face's checkpoints name and lay them out, for GPT-2, Llama, T5 1.1 and ViT.

In: a model, and tensors by name, as `safetensors.numpy.load_file` gives them. Out: the model with those weights, or the
tensors of a model. A linear map is (out, in) there and (in, out) here, with the heads as axes of their own; GPT-2 keeps
(in, out) and holds queries, keys and values in one tensor.

Source: the modules of huggingface/transformers: modeling_gpt2, modeling_llama, modeling_t5, modeling_vit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import nnx
from numpy.typing import NDArray

from nightjar_models.architectures.gpt import GPT
from nightjar_models.architectures.llama import Llama
from nightjar_models.architectures.t5 import T5
from nightjar_models.architectures.vit import ViT
from nightjar_models.errors import InputError

Tensor = NDArray[Any]
Turn = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter here and its tensor there.

    Attributes:
        out: from the parameter, in two axes at most, to the tensor.
        back: from the tensor to the parameter, before it gets its shape.
        part: which of the equal parts of the last axis, for tensors that hold several parameters.
        parts: the number of these parts.
    """

    ours: str
    theirs: str
    out: Turn = np.asarray
    back: Turn = np.asarray
    part: int = 0
    parts: int = 1


def load_tensors(model: nnx.Module, tensors: Mapping[str, Tensor]) -> None:
    """Gives a model the weights of a checkpoint, in place; each parameter stays laid out over devices as it was.

    Args:
        model: GPT, Llama, T5 or ViT.
        tensors: by name; GPT-2's also without `transformer.`, as in its first checkpoints.
    """
    values: dict[str, Tensor] = {}
    parameters = _read_parameters(model)
    weights = list(_list_weights(model))
    expected = {weight.theirs for weight in weights}
    for weight in _list_weights(model, more_layers=1):
        if weight.theirs not in expected and _find_name(weight.theirs, tensors) is not None:
            raise InputError(
                f"the checkpoint has {weight.theirs!r}: more layers than the model.", "use its number of layers"
            )
    for weight in weights:
        name = _find_name(weight.theirs, tensors)
        if name is None:
            raise InputError(f"the checkpoint has no tensor {weight.theirs!r}, expected for {weight.ours}.")
        tensor = np.asarray(tensors[name])
        own, shape = (
            np.array_split(weight.back(tensor), weight.parts, axis=-1)[weight.part],
            parameters[weight.ours].shape,
        )
        if own.size != np.prod(shape):
            raise InputError(
                f"{weight.theirs}: shape {tensor.shape}, expected as many values as {weight.ours} has: {shape}.",
                "the sizes of the preset and of the checkpoint differ",
            )
        values[weight.ours] = own.reshape(shape)
    _write_parameters(model, values)


def save_tensors(model: nnx.Module) -> dict[str, Tensor]:
    """The weights of a model by the names of a checkpoint, as `safetensors.numpy.save_file` takes them.

    ViT averages over patches and has no class token: that token and its position are zeros.
    """
    parts: dict[str, list[Tensor]] = {}
    turns: dict[str, Turn] = {}
    parameters = _read_parameters(model)
    for weight in _list_weights(model):
        parts.setdefault(weight.theirs, []).append(_flatten(weight.ours, parameters[weight.ours]))
        turns[weight.theirs] = weight.out
    tensors = {name: turns[name](np.concatenate(values, axis=-1)) for name, values in parts.items()}
    if isinstance(model, ViT):
        tensors["vit.embeddings.cls_token"] = np.zeros((1, 1, model.norm.num_features), np.float32)
    return {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}


def _find_name(name: str, tensors: Mapping[str, Tensor]) -> str | None:
    """The name of a tensor in a checkpoint; None if it has none."""
    return next((other for other in (name, name.removeprefix("transformer.")) if other in tensors), None)


def _list_weights(model: nnx.Module, more_layers: int = 0) -> Iterator[Weight]:
    match model:
        case GPT():
            return _of_gpt(_count_layers(model, "blocks") + more_layers)
        case Llama():
            return _of_llama(_count_layers(model, "blocks") + more_layers)
        case T5():
            return _of_t5(_count_layers(model, "encoder") + more_layers)
        case ViT():
            return _of_vit(_count_layers(model, "blocks") + more_layers)
        case _:
            raise InputError(
                f"{type(model).__name__}: expected GPT, Llama, T5 or ViT: others have no checkpoint to read."
            )


def _of_gpt(layers: int) -> Iterator[Weight]:
    yield Weight("token_embedding.embedding", "transformer.wte.weight")
    yield Weight("position_embedding", "transformer.wpe.weight")
    for number in range(layers):
        ours, theirs = f"blocks.{number}", f"transformer.h.{number}"
        yield from _norm(f"{ours}.attention_norm", f"{theirs}.ln_1")
        for part, name in enumerate(("query", "key", "value")):
            for end, tensor in (("kernel", "weight"), ("bias", "bias")):
                yield Weight(f"{ours}.attention.{name}.{end}", f"{theirs}.attn.c_attn.{tensor}", part=part, parts=3)
        yield from _norm(f"{ours}.feed_forward_norm", f"{theirs}.ln_2")
        maps = {
            "attention.out": "attn.c_proj",
            "feed_forward.linear_in": "mlp.c_fc",
            "feed_forward.linear_out": "mlp.c_proj",
        }
        for name, tensor in maps.items():
            yield Weight(f"{ours}.{name}.kernel", f"{theirs}.{tensor}.weight")
            yield Weight(f"{ours}.{name}.bias", f"{theirs}.{tensor}.bias")
    yield from _norm("norm", "transformer.ln_f")


def _of_llama(layers: int) -> Iterator[Weight]:
    yield Weight("token_embedding.embedding", "model.embed_tokens.weight")
    for number in range(layers):
        ours, theirs = f"blocks.{number}", f"model.layers.{number}"
        yield Weight(f"{ours}.attention_norm.scale", f"{theirs}.input_layernorm.weight")
        yield from _heads(f"{ours}.attention", f"{theirs}.self_attn", ("q_proj", "k_proj", "v_proj", "o_proj"))
        yield Weight(f"{ours}.feed_forward_norm.scale", f"{theirs}.post_attention_layernorm.weight")
        for name, tensor in (("gate", "gate_proj"), ("linear_in", "up_proj"), ("linear_out", "down_proj")):
            yield _linear(f"{ours}.feed_forward.{name}", f"{theirs}.mlp.{tensor}")
    yield Weight("norm.scale", "model.norm.weight")
    yield _linear("unembedding", "lm_head")


def _of_t5(layers: int) -> Iterator[Weight]:
    yield Weight("embedding.embedding", "shared.weight")
    heads = ("q", "k", "v", "o")
    for side in ("encoder", "decoder"):
        first = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield Weight(f"{side}_distances.table.embedding", first)
        for number in range(layers):
            ours, theirs = f"{side}.{number}", f"{side}.block.{number}.layer"
            yield Weight(f"{ours}.attention_norm.scale", f"{theirs}.0.layer_norm.weight")
            yield from _heads(f"{ours}.attention", f"{theirs}.0.SelfAttention", heads)
            last = 1
            if side == "decoder":
                yield Weight(f"{ours}.cross_norm.scale", f"{theirs}.1.layer_norm.weight")
                yield from _heads(f"{ours}.cross", f"{theirs}.1.EncDecAttention", heads)
                last = 2
            yield Weight(f"{ours}.feed_forward_norm.scale", f"{theirs}.{last}.layer_norm.weight")
            for name, tensor in (("gate", "wi_0"), ("linear_in", "wi_1"), ("linear_out", "wo")):
                yield _linear(f"{ours}.feed_forward.{name}", f"{theirs}.{last}.DenseReluDense.{tensor}")
        yield Weight(f"{side}_norm.scale", f"{side}.final_layer_norm.weight")
    yield _linear("unembedding", "lm_head")


def _of_vit(layers: int) -> Iterator[Weight]:
    embeddings = "vit.embeddings"
    yield Weight(
        "position_embedding",
        f"{embeddings}.position_embeddings",
        lambda table: np.pad(table, ((1, 0), (0, 0)))[None],  # the class token comes first
        lambda table: table[0, 1:],
    )
    yield Weight(
        "patch_embedding.kernel",
        f"{embeddings}.patch_embeddings.projection.weight",
        lambda kernel: np.transpose(kernel, (3, 2, 0, 1)),
        lambda weight: np.transpose(weight, (2, 3, 1, 0)),
    )
    yield Weight("patch_embedding.bias", f"{embeddings}.patch_embeddings.projection.bias")
    for number in range(layers):
        ours, theirs = f"blocks.{number}", f"vit.encoder.layer.{number}"
        yield from _norm(f"{ours}.attention_norm", f"{theirs}.layernorm_before")
        yield from _norm(f"{ours}.feed_forward_norm", f"{theirs}.layernorm_after")
        names = {f"attention.{name}": f"attention.attention.{name}" for name in ("query", "key", "value")}
        names |= {"attention.out": "attention.output.dense", "feed_forward.linear_in": "intermediate.dense"}
        names |= {"feed_forward.linear_out": "output.dense"}
        for name, tensor in names.items():
            yield _linear(f"{ours}.{name}", f"{theirs}.{tensor}")
            yield Weight(f"{ours}.{name}.bias", f"{theirs}.{tensor}.bias")
    yield from _norm("norm", "vit.layernorm")
    yield _linear("head", "classifier")
    yield Weight("head.bias", "classifier.bias")


def _heads(ours: str, theirs: str, names: tuple[str, str, str, str]) -> Iterator[Weight]:
    for name, tensor in zip(("query", "key", "value", "out"), names, strict=True):
        yield _linear(f"{ours}.{name}", f"{theirs}.{tensor}")


def _linear(ours: str, theirs: str) -> Weight:
    return Weight(f"{ours}.kernel", f"{theirs}.weight", np.transpose, np.transpose)


def _norm(ours: str, theirs: str) -> Iterator[Weight]:
    yield Weight(f"{ours}.scale", f"{theirs}.weight")
    yield Weight(f"{ours}.bias", f"{theirs}.bias")


def _flatten(name: str, value: Tensor) -> Tensor:
    """A parameter with its heads in one axis: a bias as a row, a kernel as (in, out); others stay as they are."""
    if name.endswith(".bias"):
        return value.reshape(-1)
    if name.endswith("attention.out.kernel") or name.endswith("cross.out.kernel"):
        return value.reshape(-1, value.shape[-1])
    if name.endswith(".kernel") and not name.startswith("patch_embedding"):
        return value.reshape(value.shape[0], -1)
    return value


def _count_layers(model: nnx.Module, stack: str) -> int:
    blocks = getattr(model, stack)
    if isinstance(blocks, nnx.List):
        return len(blocks)
    return int(blocks.attention_norm.scale.shape[0])


def _read_parameters(model: nnx.Module) -> dict[str, Tensor]:
    """The parameters by path; scanned layers one by one."""
    values: dict[str, Tensor] = {}
    for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        value = np.asarray(variable[...])
        stack = path[0]
        if stack in ("blocks", "encoder", "decoder") and not isinstance(path[1], int):
            rest = ".".join(map(str, path[1:]))
            values |= {f"{stack}.{number}.{rest}": part for number, part in enumerate(value)}
        else:
            values[".".join(map(str, path))] = value
    return values


def _write_parameters(model: nnx.Module, values: Mapping[str, Tensor]) -> None:
    state = nnx.state(model, nnx.Param)
    flat = []
    for path, variable in nnx.to_flat_state(state):
        name = ".".join(map(str, path))
        if name in values:
            value = values[name]
        else:  # scanned layers
            rest = ".".join(map(str, path[1:]))
            value = np.stack([values[f"{path[0]}.{number}.{rest}"] for number in range(variable[...].shape[0])])
        before = variable[...]
        flat.append((path, variable.replace(jax.device_put(value.astype(before.dtype), before.sharding))))
    nnx.update(model, nnx.from_flat_state(flat))
