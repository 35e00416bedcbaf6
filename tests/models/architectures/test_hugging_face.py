"""Weights in Hugging Face's layout: written and read again they are the same, and what does not fit is named.

That the names and layouts are those of transformers is shown by `nox -s hugging_face`.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from nightjar_models.architectures.hugging_face import load_tensors, save_tensors
from nightjar_models.errors import InputError
from nightjar_models.presets import find_preset
from nightjar_models.presets.config import override
from nightjar_models.training.tasks import find_task

TENSORS = {"gpt_tiny": 28, "llama_tiny": 21, "t5_tiny": 52, "vit_tiny": 56}


def build(preset: str, seed: int, *settings: str) -> nnx.Module:
    task = find_task(override(find_preset(preset)(), settings))
    model: nnx.Module = task.build(nnx.Rngs(jax.random.key(seed)))
    return model


def parameters(model: nnx.Module) -> dict[Any, Any]:
    return {path: np.asarray(variable[...]) for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param))}


@pytest.mark.parametrize("preset", TENSORS)
def test_weights_come_back_whether_layers_are_scanned_or_not(preset: str) -> None:
    first = build(preset, 0)
    tensors = save_tensors(first)
    assert len(tensors) == TENSORS[preset]
    scanned = build(preset, 1, "compute.scan_layers=true")
    load_tensors(scanned, tensors)
    again = build(preset, 2)
    load_tensors(again, save_tensors(scanned))
    expected = parameters(first)
    found = parameters(again)
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[path], value) for path, value in expected.items())


def test_a_linear_map_is_out_by_in_there_and_gpt_2_keeps_queries_keys_and_values_together() -> None:
    llama, gpt = save_tensors(build("llama_tiny", 0)), save_tensors(build("gpt_tiny", 0))
    assert llama["model.layers.0.self_attn.k_proj.weight"].shape == (48, 96)
    assert llama["model.layers.1.mlp.down_proj.weight"].shape == (96, 256)
    assert gpt["transformer.h.0.attn.c_attn.weight"].shape == (96, 288)
    assert gpt["transformer.h.0.attn.c_attn.bias"].shape == (288,)


def test_what_is_missing_or_has_another_size_is_named() -> None:
    model = build("gpt_tiny", 0)
    before = parameters(model)
    tensors = save_tensors(model)
    wrong = tensors | {"transformer.wte.weight": np.zeros((50257, 96))}
    with pytest.raises(InputError, match=r"transformer.wte.weight: shape \(50257, 96\), expected as many values"):
        load_tensors(model, wrong)
    with pytest.raises(InputError, match=r"no tensor 'transformer.ln_f.bias', expected for norm.bias"):
        load_tensors(model, {name: tensor for name, tensor in tensors.items() if name != "transformer.ln_f.bias"})
    assert all(np.array_equal(value, before[path]) for path, value in parameters(model).items())


def test_a_model_that_has_no_such_checkpoint_is_refused() -> None:
    with pytest.raises(InputError, match="VAE: expected GPT, Llama, T5 or ViT"):
        save_tensors(build("vae_tiny", 0))


def test_a_checkpoint_with_more_layers_is_refused_and_gpt_2s_own_names_are_read() -> None:
    model = build("gpt_tiny", 0)
    tensors = save_tensors(model)
    deeper = tensors | {"transformer.h.2.ln_1.weight": np.ones(96)}
    with pytest.raises(InputError, match=r"'transformer.h.2.ln_1.weight': more layers than the model"):
        load_tensors(model, deeper)
    other = build("gpt_tiny", 1)
    load_tensors(other, {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()})
    expected = parameters(model)
    assert all(np.array_equal(value, expected[path]) for path, value in parameters(other).items())


def test_parameters_stay_laid_out_over_devices_as_they_were() -> None:
    model = build("gpt_tiny", 0)
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))  # type: ignore[no-untyped-call]
    nnx.update(model, jax.device_put(nnx.state(model, nnx.Param), split))
    load_tensors(model, save_tensors(build("gpt_tiny", 1)))
    assert {leaf.sharding for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))} == {split}
