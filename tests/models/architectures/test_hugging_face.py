"""Weights in Hugging Face's layout: written and read again they are the same, and what does not fit is named.

The golden numbers are of a loader whose logits agreed with transformers 4.46.3 to 5e-5 of the largest one, on toy
checkpoints of random weights.
"""

import hashlib
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
# A digest of the names and shapes of a checkpoint, and the last logits of one whose weights are drawn by their names.
GOLDEN = {
    "gpt_tiny": ("906ce6cf8bf2b47e", (-0.1343522, 0.1084535, 0.2649439, 0.0849015)),
    "llama_tiny": ("27e16d91e54b62f2", (-0.0651640, 0.6172531, -0.5820153, -0.4209274)),
    "t5_tiny": ("f4023a96a9e69eb3", (-0.1042005, 0.4658922, -0.0960711, 0.6693146)),
    "vit_tiny": ("2668f140c5fd0c70", (0.3169298, 0.2166317, -0.0027758, 0.3078557)),
}


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


def draw_inputs(preset: str) -> list[Any]:
    rng = np.random.default_rng(1)
    if preset == "vit_tiny":
        return [rng.uniform(-1, 1, (1, 8, 8, 1))]
    return [rng.integers(1, 10, (1, 8)).astype(np.int32) for _ in range(2 if preset == "t5_tiny" else 1)]


@pytest.mark.parametrize("scanned", ["false", "true"])
@pytest.mark.parametrize("preset", GOLDEN)
def test_a_checkpoint_has_the_names_and_gives_the_logits_of_transformers(preset: str, scanned: str) -> None:
    digest, logits = GOLDEN[preset]
    model: Any = nnx.view(
        build(preset, 0, f"compute.scan_layers={scanned}"), raise_if_not_found=False, deterministic=True
    )
    shapes = {name: tensor.shape for name, tensor in save_tensors(model).items()}
    assert hashlib.sha256(repr(sorted(shapes.items())).encode()).hexdigest()[:16] == digest
    draw = {name: np.random.default_rng(list(name.encode())).normal(size=shape) for name, shape in shapes.items()}
    load_tensors(model, {name: (0.2 * values).astype(np.float32) for name, values in draw.items()})
    found = np.asarray(model(*draw_inputs(preset))).ravel()
    np.testing.assert_allclose(found[-4:], logits, rtol=1e-4, atol=1e-4)


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
