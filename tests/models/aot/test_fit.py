"""The search for a way to train needs no compiler: here memory is what a formula says."""

import json
import lzma
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import typer

from nightjar_models.aot import compile as ahead_compile
from nightjar_models.aot import topology
from nightjar_models.aot.compile_errors import TRITON_PRODUCTS
from nightjar_models.aot.compile_subprocess import CompilerProcess
from nightjar_models.aot.fit import Candidate, Measured, choose_remats, list_candidates, parse_devices, search
from nightjar_models.aot.meshes import STATE_BYTES, Parameter, list_meshes, state_bytes
from nightjar_models.aot.plan import MOST_FRACTION, needed_fraction, render_plan, room_bytes
from nightjar_models.commands.fit import fit
from nightjar_models.errors import InputError
from nightjar_models.measuring.hlo import parse_hlo
from nightjar_models.parallel.mesh import MeshShape, parse_mesh
from nightjar_models.presets import find_preset
from nightjar_models.presets.config import TrainConfig, override
from nightjar_models.program.module import read_module
from tests.models.aot.program import SCAN
from tests.models.aot.test_compile_errors import REFUSED

DEVICE = 80 << 30
PRODUCTS = TRITON_PRODUCTS.option
KEPT = {"none": 8.0, "dots_no_batch": 3.0, "full": 1.0}  # GiB of activations per example
CUDNN = tuple(KEPT)
BLOCKS = Parameter(shape=(32, 4096, 16, 1024), axes=("pipeline", "fsdp", "tensor", None))  # 2.1 billion numbers
EXPERTS = Parameter(shape=(32, 8, 4096, 1024), axes=("pipeline", "expert", "fsdp", "tensor"))


def state_of(parameters: int) -> Callable[[MeshShape], int]:
    return lambda mesh: STATE_BYTES * parameters // (mesh.fsdp * mesh.tp)


def formula(parameters: int, tried: list[Candidate]) -> Callable[[Candidate], Measured]:
    def compile_one(candidate: Candidate) -> Measured:
        tried.append(candidate)
        mesh = candidate.mesh
        examples = candidate.batch_size / (mesh.dp * mesh.fsdp) / candidate.microbatches
        step = 1.0 + 0.3 * mesh.tp + 0.1 * CUDNN.index(candidate.remat) + 0.01 * candidate.microbatches
        return Measured(
            candidate=candidate,
            reserved_bytes=state_of(parameters)(mesh) + int(KEPT[candidate.remat] * examples * 2**30),
            step_s=step,
            exposed_s=0.1,
        )

    return compile_one


def find(parameters: int, batch_size: int, tried: list[Candidate] | None = None, **options: Any) -> list[Measured]:
    given = {
        "meshes": [parse_mesh(text) for text in ("fsdp8", "fsdp4.tp2", "dp8", "tp8")],
        "compile_one": formula(parameters, [] if tried is None else tried),
        **options,
    }
    return search(state_of=state_of(parameters), batch_size=batch_size, room_bytes=DEVICE, remats=CUDNN, **given)


def test_the_fastest_that_fits_comes_first_and_no_mesh_is_compiled_further_than_needed() -> None:
    tried: list[Candidate] = []
    found = find(1_000_000_000, 64, tried)
    assert found[0].fits(DEVICE)
    assert (str(found[0].candidate.mesh), found[0].candidate.remat) == ("fsdp8", "none")
    fitting = [str(one.candidate.mesh) for one in found if one.fits(DEVICE)]
    assert sorted(fitting) == ["dp8", "fsdp4.tp2", "fsdp8", "fsdp8", "tp8"]  # the fastest a second time
    assert len(tried) == len(found)


def test_what_recomputing_cannot_make_small_is_cut_into_microbatches() -> None:
    found = find(7_000_000_000, 1024, meshes=[MeshShape(fsdp=8)])  # 128 examples on each device: 128 GiB at the least
    assert {(one.candidate.remat, one.candidate.microbatches) for one in found} >= {("full", 2)}
    assert found[0].candidate.microbatches > 1


def test_on_the_fastest_mesh_less_is_recomputed_with_more_microbatches() -> None:
    """All kept needs 128 GiB, some 48: two microbatches of all kept fit, and are the less work here."""
    tried: list[Candidate] = []
    found = find(1_000_000_000, 128, tried, meshes=[MeshShape(fsdp=8)])
    ways = [(one.remat, one.microbatches) for one in tried]
    assert ways == [("none", 1), ("dots_no_batch", 1), ("full", 1), ("none", 2)]
    assert (found[0].candidate.remat, found[0].candidate.microbatches) == ("none", 2)


def test_on_the_fastest_mesh_more_is_recomputed_where_that_may_be_faster() -> None:
    """Here keeping is dear: what recomputes most is the fastest, of what fits without."""
    tried: list[Candidate] = []

    def compile_one(candidate: Candidate) -> Measured:
        tried.append(candidate)
        step = 1.0 + candidate.mesh.tp - 0.1 * CUDNN.index(candidate.remat)
        return Measured(candidate=candidate, reserved_bytes=1, step_s=step)

    found = find(1_000_000_000, 64, compile_one=compile_one, meshes=[parse_mesh("tp8"), parse_mesh("fsdp8")])
    assert [(str(one.mesh), one.remat) for one in tried] == [
        *(("tp8", "none"), ("fsdp8", "none"), ("fsdp8", "dots_no_batch"))
    ]
    assert (str(found[0].candidate.mesh), found[0].candidate.remat) == ("fsdp8", "dots_no_batch")


def test_what_must_need_more_than_what_did_not_fit_is_not_compiled() -> None:
    tried: list[Candidate] = []
    find(1_000_000_000, 128, tried, meshes=[parse_mesh(text) for text in ("fsdp8", "dp2.fsdp4", "dp4.fsdp2")])
    assert [one.remat for one in tried[:4]] == ["none", "dots_no_batch", "dots_no_batch", "dots_no_batch"]


def test_a_mesh_that_holds_something_twice_bounds_no_other() -> None:
    tried: list[Candidate] = []
    find(1_000_000_000, 64, tried, meshes=[parse_mesh("tp8"), parse_mesh("fsdp8")])
    assert ("fsdp8", "none") in [(str(one.mesh), one.remat) for one in tried]


def test_no_more_is_compiled_than_allowed_and_the_fastest_mesh_has_its_share() -> None:
    tried: list[Candidate] = []
    meshes = [MeshShape(fsdp=8)] + [MeshShape(dp=8 // count, fsdp=count) for count in (4, 2, 1)] * 3
    found = find(1_000_000_000, 128, tried, meshes=meshes, most=8)
    assert len(tried) == 8  # six, and the two that were kept back
    assert (found[0].candidate.remat, found[0].candidate.microbatches) == ("none", 2)
    assert [one.problem for one in found].count("not tried: --most 8") == 5


def test_a_state_that_alone_fills_the_devices_is_not_compiled() -> None:
    tried: list[Candidate] = []
    found = find(100_000_000_000, 64, tried)
    assert tried == []
    assert all("gradients and optimizer alone" in (one.problem or "") for one in found)
    assert not any(one.fits(DEVICE) for one in found)


@pytest.mark.parametrize(
    ("mesh", "asked", "batch_size", "pipelined"),
    [
        ("dp8", 3, 8, 0),
        ("fsdp2.pp4", 16, 16, 8),
        ("fsdp2.pp4", 9, 16, 8),
        ("fsdp2.pp4", 64, 64, 16),
        ("dp2.ep4", 9, 16, 0),
    ],
)
def test_a_batch_is_raised_to_fit_the_mesh_and_stages(mesh: str, asked: int, batch_size: int, pipelined: int) -> None:
    first = next(list_candidates(parse_mesh(mesh), asked))
    assert (first.batch_size, first.pipelined) == (batch_size, pipelined)


def test_experts_and_stages_hold_each_their_part_of_the_state() -> None:
    everything = STATE_BYTES * 2**30
    assert state_bytes([EXPERTS], MeshShape()) == everything
    assert state_bytes([EXPERTS], MeshShape(ep=8)) == everything // 8
    assert state_bytes([EXPERTS], parse_mesh("fsdp2.ep8.pp4")) == everything // 64
    assert state_bytes([BLOCKS], MeshShape(ep=8)) == 2 * everything  # no expert is in it
    assert state_bytes([BLOCKS, EXPERTS], MeshShape(dp=8)) == 3 * everything


def test_experts_are_tried_first_and_a_pipeline_before_all_is_split_over_heads() -> None:
    names = [str(mesh) for mesh in list_meshes(16, 8, [BLOCKS, EXPERTS], DEVICE)]
    assert names[0] == "dp2.ep8"
    assert names.index("ep8.pp2") < names.index("tp8.pp2")
    assert len(names) == len(set(names)) <= 24
    assert all(parse_mesh(name).size == 16 for name in names)


@pytest.mark.parametrize("devices", [*range(1, 9), 16, 24, 40, 104, 1024])
def test_every_mesh_has_all_devices_splits_evenly_and_keeps_what_exchanges_most_within_a_host(devices: int) -> None:
    found = list_meshes(devices, 8, [BLOCKS, EXPERTS], DEVICE)
    assert found
    for mesh in found:
        assert mesh.size == devices
        assert all(one.is_even_on(mesh) for one in (BLOCKS, EXPERTS))
        assert min(devices, 8) % (mesh.tp * mesh.ep) == 0


def test_without_experts_or_equal_layers_neither_axis_is_tried() -> None:
    plain = Parameter(shape=(4096, 1024), axes=("fsdp", "tensor"))
    assert all(mesh.ep == mesh.pp == 1 for mesh in list_meshes(64, 8, [plain], DEVICE))
    assert any(mesh.pp > 1 and mesh.ep == 1 for mesh in list_meshes(64, 8, [BLOCKS], DEVICE))


def test_a_mesh_that_splits_unevenly_is_not_tried() -> None:
    twelve = Parameter(shape=(12, 768, 12, 64), axes=("pipeline", "fsdp", "tensor", None))
    assert {mesh.tp for mesh in list_meshes(8, 8, [twelve], DEVICE)} == {1, 2, 4}


def test_where_the_state_has_no_room_comes_last() -> None:
    names = [str(mesh) for mesh in list_meshes(8, 8, [BLOCKS, EXPERTS], 16 << 30)]
    assert names.index("dp8") > names.index("fsdp8")


@pytest.mark.parametrize(
    ("preset", "axes"),
    [
        ("gpt_tiny", "p"),
        ("llama_tiny", "p"),
        ("moe_tiny", "ep"),
        ("t5_tiny", "p"),
        ("vit_b16", "p"),
        ("vae_tiny", ""),
        ("diffusion_tiny", ""),
    ],
)
def test_each_model_says_itself_which_axes_split_it(preset: str, axes: str) -> None:
    found = list_meshes(8, 8, ahead_compile.list_parameters(find_preset(preset)()), DEVICE)
    assert any(mesh.ep > 1 for mesh in found) == ("e" in axes)
    assert any(mesh.pp > 1 for mesh in found) == ("p" in axes)


def test_products_with_batch_dimensions_are_kept_or_not_as_a_step_of_its_own() -> None:
    assert choose_remats(find_preset("llama2_7b")()) == CUDNN
    assert choose_remats(find_preset("moe_8x7b")()) == ("none", "dots", "dots_no_batch", "full")
    assert "dots" in choose_remats(find_preset("t5_large")())


def test_a_rematerialization_that_the_user_sets_is_the_only_one() -> None:
    settings = ["compute.remat=full"]
    assert choose_remats(override(find_preset("llama_125m")(), settings), settings) == ("full",)


LLAMA = Candidate(mesh=MeshShape(fsdp=8), batch_size=16, microbatches=2, remat="full")


def test_the_plan_is_a_command_with_the_mesh_the_ways_of_computing_and_what_the_user_set() -> None:
    assert render_plan("llama2_7b", Measured(candidate=LLAMA), DEVICE) == (
        "nightjar-models train llama2_7b --mesh fsdp8 --set batch_size=16 --set compute.remat=full "
        "--set compute.accumulate=2 --out OUT"
    )
    best = Measured(candidate=LLAMA, options={PRODUCTS: False})
    assert render_plan("llama2_7b", best, DEVICE, ["model.layers=40", "batch_size=8"]) == (
        'XLA_FLAGS="$XLA_FLAGS --xla_gpu_enable_triton_gemm=false" '
        "nightjar-models train llama2_7b --mesh fsdp8 --set model.layers=40 --set batch_size=16 "
        "--set compute.remat=full --set compute.accumulate=2 --out OUT"
    )


def test_a_shell_reads_the_options_of_the_compiler_as_they_were_given() -> None:
    options = {"xla_dump_to": '/A "b" $(echo c) `echo d` \\ \'e', "xla_b": True}
    plan = render_plan("llama2_7b", Measured(candidate=LLAMA, options=options), DEVICE)
    flags = plan.partition(" nightjar-models train ")[0]
    shell = {**os.environ, "XLA_FLAGS": "--first"}
    command = ["sh", "-c", f"""{flags}; printf %s "$XLA_FLAGS\""""]
    said = subprocess.run(command, env=shell, capture_output=True, text=True, check=True)
    assert said.stdout == f"--first --xla_dump_to={options['xla_dump_to']} --xla_b=true"


def test_the_plan_of_a_pipeline_scans_its_layers_and_says_into_how_many_parts_it_cuts_the_batch() -> None:
    best = Measured(candidate=next(list_candidates(parse_mesh("fsdp2.pp4"), 16)))
    assert "--set compute.scan_layers=true --set compute.microbatches=8" in render_plan("vit_b16", best, DEVICE)


@pytest.mark.parametrize(("share", "said"), [(0.5, None), (0.71, None), (0.75, "0.79"), (0.855, "0.90")])
def test_the_plan_takes_more_memory_than_jax_does_only_if_it_must(share: float, said: str | None) -> None:
    plan = render_plan("llama2_7b", Measured(candidate=LLAMA, reserved_bytes=int(share * DEVICE)), DEVICE)
    assert plan.startswith("nightjar-models" if said is None else f"XLA_CLIENT_MEM_FRACTION={said} nightjar-models")


def test_what_fits_leaves_room_for_cuda_and_for_what_is_not_the_step() -> None:
    room = room_bytes(DEVICE)
    assert not Measured(candidate=LLAMA, reserved_bytes=int(0.86 * DEVICE)).fits(room)
    assert Measured(candidate=LLAMA, reserved_bytes=int(0.85 * DEVICE)).fits(room)
    assert needed_fraction(room, DEVICE) == MOST_FRACTION


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[TrainConfig, Mapping[str, Any]]]:
    """What is asked of a compiler that refuses Triton's tiles and makes the recorded program of everything."""
    module = read_module(parse_hlo(lzma.decompress(SCAN.read_bytes()), str(SCAN)))
    asked: list[tuple[TrainConfig, Mapping[str, Any]]] = []

    class Compiled:
        pass

    def compile_step(
        config: TrainConfig, _mesh: object, _cluster: object, options: Mapping[str, Any], folder: Path, *, spills: bool
    ) -> Any:
        assert folder.is_dir()
        assert not spills
        asked.append((config, dict(options)))
        if options.get(PRODUCTS, True):
            raise REFUSED
        compiled: Any = Compiled()
        compiled.module = module
        return compiled

    monkeypatch.setattr(topology, "prepare_process", lambda: None)
    monkeypatch.setattr(ahead_compile, "compile_step", compile_step)
    monkeypatch.setattr(CompilerProcess, "call", lambda _, function, *given: function(tmp_path, *given))
    return asked


def test_the_command_hands_settings_and_options_to_the_compiler_and_to_the_plan(
    compiler: list[tuple[TrainConfig, Mapping[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    fit("llama_tiny", devices="8", meshes=["fsdp8"], settings=["model.layers=2"], xla=["xla_a=1"], most=8, as_json=True)
    answer = json.loads(capsys.readouterr().out)["answers"][0]
    assert {config.model.layers for config, _ in compiler} == {2}  # type: ignore[union-attr]
    assert [options for _, options in compiler[:2]] == [{"xla_a": "1"}, {"xla_a": "1", PRODUCTS: False}]
    assert 'XLA_FLAGS --xla_a=1 --xla_gpu_enable_triton_gemm=false"' in answer["plan"]
    assert "--set model.layers=2" in answer["plan"]


def test_the_table_says_what_is_assumed_and_ends_with_the_plan(
    compiler: list[tuple[TrainConfig, Mapping[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    fit("llama_tiny", devices="8", meshes=["fsdp8"], xla=[f"{PRODUCTS}=false"], most=8)
    table = capsys.readouterr().out
    assert "67.6 of 79.1 GiB (JAX takes at most 90%, a step 95 % of that: assumed)" in table
    assert table.rstrip().endswith("--out OUT")
    assert len(compiler) == 2


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ({"xla": [f"{PRODUCTS}=true"]}, 4, "nothing that was tried fits"),  # the compiler refuses: no answer
        ({}, 1, "nothing fits"),
    ],
)
def test_nothing_fits_is_told_apart_from_what_is_not_known(
    options: dict[str, Any],
    code: int,
    said: str,
    compiler: list[tuple[TrainConfig, Mapping[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not options:  # a model whose state alone is too large
        huge = [Parameter(shape=(1 << 20, 1 << 20), axes=(None, None))]
        monkeypatch.setattr(ahead_compile, "list_parameters", lambda _: huge)
    with pytest.raises(typer.Exit) as ended:
        fit("llama_tiny", devices="8", meshes=["fsdp8"], most=8, **options)
    assert ended.value.exit_code == code
    printed = capsys.readouterr().out
    assert said in printed
    assert len(compiler) == (code == 4)
    assert ("Hint: add --xla" in printed) == (code == 4)


@pytest.mark.parametrize("text", ["", "0", "x", "64..8", "8,", "8...16", "8..1000000", "16385"])
def test_what_is_no_number_of_devices_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--devices"):
        parse_devices(text)
