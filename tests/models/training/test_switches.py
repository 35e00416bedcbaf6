"""Each setting of `compute` changes a model's program, or is refused, or says that it fell back: none is ignored."""

import dataclasses
import functools

import jax
import pytest

from nightjar_models.architectures import te_layers
from nightjar_models.errors import InputError, ToolError
from nightjar_models.kernels.fused_attention import note_choices
from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.parallel.sharding import make_mesh, use_mesh
from nightjar_models.presets import PRESETS
from nightjar_models.presets.config import CHOICES, Compute, TrainConfig
from nightjar_models.training.idioms import make_program
from nightjar_models.training.switches import NEEDS, check_switches
from nightjar_models.training.tasks import find_task
from tests.models.parallel.eight_meshes import SIZES, make_batch, tiny

USUAL = {f"compute.{name}={value}" for name, value in dataclasses.asdict(Compute()).items()}
OFFERED = {f"{key}={value}" for key, values in CHOICES.items() if key.startswith("compute.") for value in values}
CHOSEN = OFFERED - USUAL
FFI = "compute.norm=ffi"  # its kernel is compiled here
SWITCHES = sorted(CHOSEN | {"compute.scan_layers=true", "compute.accumulate=2"})


@functools.cache
def lower(preset: str, *settings: str) -> tuple[str, frozenset[str]]:
    """The gradients of the loss as StableHLO, and what attention fell back to."""
    config = tiny(preset, *([] if preset.startswith(("vae", "diffusion")) else ["model.layers=1"]), *settings)
    program = make_program(config, find_task(config), make_mesh(MeshShape()))
    with note_choices() as notes, use_mesh(program.mesh):
        text = jax.jit(program.gradient).lower(program.abstract, make_batch(config)).as_text()
    return text, frozenset(note for note in notes if "refused" in note)


@pytest.mark.parametrize(
    "switch", [pytest.param(switch, marks=pytest.mark.compiler if switch == FFI else ()) for switch in SWITCHES]
)
@pytest.mark.parametrize("preset", SIZES)
@pytest.mark.slow
def test_a_switch_changes_the_program_or_is_refused_or_says_that_it_fell_back(preset: str, switch: str) -> None:
    key, value = switch.removeprefix("compute.").split("=")
    models = {(field, str(choice).lower()): models for (field, choice), models in NEEDS.items()}.get((key, value))
    used = models is None or isinstance(PRESETS[preset]().model, models)
    if used and value.startswith(te_layers.SWITCH):
        with pytest.raises(ToolError, match=r"expected an NVIDIA GPU of compute capability .*, found none"):
            lower(preset, switch)
    elif used:
        text, notes = lower(preset, switch)
        fell_back = switch in ("compute.attention=cudnn", "compute.attention=ring")  # no GPU, one device
        assert bool(notes) == fell_back
        assert (text == lower(preset)[0]) == fell_back
    else:
        with pytest.raises(InputError, match=f"^{switch}: {preset} does not use this setting; expected one of "):
            lower(preset, switch)


@pytest.mark.parametrize("preset", PRESETS)
def test_no_preset_sets_what_its_model_would_ignore(preset: str) -> None:
    config: TrainConfig = PRESETS[preset]()
    check_switches(config, make_mesh(MeshShape()))
    assert any(isinstance(config.model, type(PRESETS[one]().model)) for one in SIZES)  # each kind is tested above


def test_the_workloads_that_can_are_named() -> None:
    with pytest.raises(
        InputError, match=r"compute\.norm=ffi: gpt_tiny .*; expected one of llama_tiny, moe_tiny, t5_ti"
    ):
        lower("gpt_tiny", "compute.norm=ffi")
