"""The operations counted from a model's sizes are those that XLA counts in the traced step."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from nightjar_models.architectures.moe import count_places
from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.parallel.sharding import make_mesh
from nightjar_models.presets import PRESETS, find_preset
from nightjar_models.presets.config import CHOICES, Compute
from nightjar_models.presets.sizes import (
    DiffusionConfig,
    GPTConfig,
    LlamaConfig,
    ModelConfig,
    MoEConfig,
    T5Config,
    VAEConfig,
)
from nightjar_models.presets.sizes import ViTConfig as ViT
from nightjar_models.training.checkpoint import History
from nightjar_models.training.flops import find_peak, masked_flops, train_flops
from nightjar_models.training.idioms import make_program
from nightjar_models.training.tasks import find_task
from nightjar_models.training.train import use_of_peak

BATCH = 64
INPUTS = {  # without reading data: shapes are all that is traced
    "tokens": ((256 + 1,), np.int32),
    "source": ((64,), np.int32),
    "target": ((48,), np.int32),
    "image": ((32, 32), np.float32),
    "label": ((), np.int32),
    "text": ((16,), np.int32),
    "key": ((2,), np.uint32),
}
TEXT = {"vocabulary": 1024, "length": 256, "width": 256, "layers": 2, "heads": 4}
SIZES: list[ModelConfig] = [
    GPTConfig(**TEXT, feed_forward=1024),
    LlamaConfig(**TEXT, groups=2, feed_forward=768),
    MoEConfig(**TEXT, groups=2, feed_forward=512, experts=4, routing_length=256),
    T5Config(
        vocabulary=1024, length=64, target_length=48, width=256, layers=2, heads=4, head_width=64, feed_forward=512
    ),
    ViT(image=32, patch=4, width=256, layers=2, heads=4, feed_forward=1024),
    DiffusionConfig(image=32, width=64, levels=2, blocks=2, heads=4, text_length=16, text_width=64, text_layers=1),
    VAEConfig(image=32, feed_forward=512, latent=32),
]


def dispatch_flops(model: MoEConfig) -> float:
    """What GShard's dispatch adds to a model's need: products with one-hot matrices, and places left empty."""
    slots, tokens = model.experts * count_places(model), model.length
    stretches = tokens // model.routing_length
    moved = 2 * 2.0 * tokens * slots * model.width  # to the experts and back
    routed = 2.0 * tokens * model.chosen * slots  # one-hot products that find the places
    empty = (stretches * slots - model.chosen * tokens) * 6.0 * model.width * model.feed_forward
    return model.layers * (moved + routed + empty)


@pytest.mark.parametrize("model", SIZES, ids=lambda model: type(model).__name__.removesuffix("Config"))
@pytest.mark.slow
def test_the_count_is_that_of_xla(model: ModelConfig) -> None:
    config = dataclasses.replace(PRESETS["gpt_tiny"](), model=model, batch_size=BATCH, compute=Compute())
    program = make_program(config, find_task(config), make_mesh(MeshShape()))
    batch = {n: jax.ShapeDtypeStruct((BATCH, *s), t) for n, (s, t) in INPUTS.items()}  # type: ignore[no-untyped-call]
    counted = program.lower(batch).cost_analysis()["flops"]
    expected = train_flops(model) + (3 * dispatch_flops(model) if isinstance(model, MoEConfig) else 0)
    # XLA also counts norms, softmax and the optimizer, and leaves out gradients by the first layer's input.
    assert counted / (BATCH * expected) == pytest.approx(1, abs=0.05)


def test_a_step_has_three_times_the_products_of_the_traced_forward_pass() -> None:
    # Every dot_general and convolution in the jaxpr, without what dispatches tokens to experts.
    counted = (1073741824, 1073741824, 1276116992, 396886016, 210244608, 2026963968, 3244032)
    assert [train_flops(model) for model in SIZES] == [3 * flops for flops in counted]


def test_large_models_need_six_operations_per_parameter_and_token() -> None:
    # Kaplan et al. 2020, section 2.1: 6 N per token, plus attention (12 layers * length * width per token)
    model = PRESETS["llama2_7b"]().model
    assert isinstance(model, LlamaConfig)
    attention = 12.0 * model.layers * model.length * model.width
    lookup = model.vocabulary * model.width  # the embedding is looked up, not multiplied
    assert train_flops(model) / model.length == pytest.approx(6 * (6_738_415_616 - lookup) + attention, rel=1e-3)


def test_only_known_gpus_have_a_peak() -> None:
    assert find_peak("cpu", "f32") is None
    assert find_peak("NVIDIA H100 80GB HBM3", "f32") == pytest.approx(494.7e12, rel=1e-3)
    assert find_peak("NVIDIA H200", "f32") == find_peak("NVIDIA H100 80GB HBM3", "f32")  # the same chip


def test_products_in_fp8_have_the_peak_of_fp8_where_the_gpu_has_one() -> None:
    assert find_peak("NVIDIA H100 80GB HBM3", "bf16", "fp8") == pytest.approx(1978.9e12, rel=1e-3)
    assert find_peak("NVIDIA A100-SXM4-80GB", "bf16", "fp8") == find_peak("NVIDIA A100-SXM4-80GB", "bf16")
    peaks = [find_peak("NVIDIA B200", "bf16", products) for products in CHOICES["compute.products"]]
    half = find_peak("NVIDIA B200", "bf16") or 0
    assert peaks == pytest.approx([half, *[2 * half] * 3, 4 * half])


def test_mfu_is_the_share_of_the_peak_of_what_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "local_devices", lambda: [SimpleNamespace(device_kind="NVIDIA H100 80GB HBM3")])
    config, history = PRESETS["gpt3_126m"](), History(losses=[1.0, 1.0], step_times=[9.0, 0.5])
    rate = config.batch_size * train_flops(config.model) / 0.5
    peaks: list[tuple[dict[str, Any], float]] = [
        ({}, 989.4e12),
        ({"products": "fp8"}, 1978.9e12),
        ({"dtype": "f32"}, 494.7e12),
        ({"dtype": "f32", "layers": "te_block"}, 989.4e12),  # which computes in bfloat16
    ]
    for switches, peak in peaks:
        changed = dataclasses.replace(config, compute=dataclasses.replace(config.compute, **switches))
        found = {sample.name: sample.values for sample in use_of_peak(changed, MeshShape(dp=2), history)}
        assert found["flop_rate"] == [rate]
        assert found["mfu"] == pytest.approx([rate / (2 * peak)], rel=1e-3)
        share = masked_flops(changed.model) / train_flops(changed.model)
        assert found["mfu_causal"] == pytest.approx([rate / (2 * peak) * (1 - share)], rel=1e-3)


def test_what_a_causal_mask_hides_is_every_pair_with_a_later_position() -> None:
    hidden = sum(key > query for query in range(256) for key in range(256))
    for model in SIZES[:3]:  # scores and sums are two products of the width, each also twice backward
        assert masked_flops(model) == 3 * 2 * hidden * 2 * 2 * 256
    hidden = sum(key > query for query in range(48) for key in range(48))
    assert masked_flops(SIZES[3]) == 3 * 2 * hidden * 2 * 2 * 4 * 64
    assert [masked_flops(model) for model in SIZES[4:]] == [0, 0, 0]


@pytest.mark.parametrize("preset", [preset for preset in PRESETS if preset.endswith("_tiny")])
def test_a_step_is_enough_work_that_what_the_host_does_for_it_is_little(preset: str) -> None:
    config = find_preset(preset)()
    # 0.2 ms of the host's beside some 10 ms; a step of 0.02 GFLOP took 1 ms
    assert config.batch_size * train_flops(config.model) > 1e8
