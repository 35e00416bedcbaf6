"""Loss and every gradient of the presets: over meshes against one device, and compiled against single operations."""

from __future__ import annotations

import pytest

from nightjar_models.explain.compiled import explain_compiled, explain_mesh
from nightjar_models.explain.program import trace_preset

LAYERS = ("model.layers=2", "compute.scan_layers=true")  # two stages of a pipeline
RING = (*LAYERS, "compute.attention=ring")
NO_DROPOUT = (*LAYERS, "model.dropout=0")  # a pipeline draws it stage by stage
CASES = [
    *(("gpt_tiny", "dp2.ep2.tp2", LAYERS), ("gpt_tiny", "pp2.fsdp2.sp2", RING), ("gpt_tiny", "dp2.fsdp2.tp2", LAYERS)),
    *(("llama_tiny", "ep2.sp2.tp2", RING), ("llama_tiny", "pp2.dp2.fsdp2", LAYERS)),
    *(("moe_tiny", "dp2.sp2.tp2", LAYERS), ("moe_tiny", "pp2.ep2.fsdp2", LAYERS)),
    *(("t5_tiny", "dp2.ep2.fsdp2", LAYERS), ("t5_tiny", "pp2.sp2.tp2", LAYERS)),
    *(("vit_tiny", "dp2.fsdp2.tp2", NO_DROPOUT), ("vit_tiny", "pp2.ep2.sp2", NO_DROPOUT)),
    *(("diffusion_tiny", "dp4.tp2", ()), ("diffusion_tiny", "ep2.fsdp2.tp2", ())),
    *(("vae_tiny", "dp2.fsdp2.tp2", ()), ("vae_tiny", "ep8", ())),
]
SETTINGS = {preset: settings for preset, _, settings in CASES}


@pytest.mark.parametrize(("preset", "mesh", "settings"), CASES, ids=lambda value: value if type(value) is str else "")
def test_gradients_over_a_mesh_are_those_of_one_device(preset: str, mesh: str, settings: tuple[str, ...]) -> None:
    found = explain_mesh(preset, settings, mesh, print)
    assert found is None or found.kind == "rounding", str(found)


@pytest.mark.parametrize("preset", SETTINGS)
def test_gradients_compiled_are_those_of_single_operations(preset: str) -> None:
    found = explain_compiled(trace_preset(preset, SETTINGS[preset], spread=True), print)
    assert found is None or found.kind == "rounding", str(found)
