"""The search for a way to train needs no compiler: here memory is what a formula says."""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from typing import Any

import pytest

from nightjar_models.ahead import compile as ahead_compile
from nightjar_models.ahead import topology
from nightjar_models.ahead.fit import (
    STATE_BYTES,
    Candidate,
    Measured,
    compile_tiled,
    list_meshes,
    parse_devices,
    render_plan,
    search,
)
from nightjar_models.ahead.module import read_module
from nightjar_models.ahead.refusal import HINT, TRITON_PRODUCTS
from nightjar_models.commands.fit import fit
from nightjar_models.config import TrainConfig
from nightjar_models.errors import CompilerError, InputError
from nightjar_models.hlo import parse_hlo
from nightjar_models.mesh import MeshShape
from tests.models.ahead_program import RECORDED

DEVICE = 80 << 30
KEPT = {"none": 8.0, "dots_no_batch": 3.0, "full": 1.0}  # GiB of activations per example


def formula(parameters: int, tried: list[Candidate]) -> object:
    def compile_one(candidate: Candidate) -> Measured:
        tried.append(candidate)
        mesh = candidate.mesh
        state = STATE_BYTES * parameters // (mesh.fsdp * mesh.tp)
        examples = candidate.batch_size / (mesh.dp * mesh.fsdp) / candidate.microbatches
        step = 1.0 + 0.3 * mesh.tp + 0.1 * list(KEPT).index(candidate.remat)
        return Measured(
            candidate=candidate,
            reserved_bytes=state + int(KEPT[candidate.remat] * examples * 2**30),
            step_s=step,
            exposed_s=0.1,
        )

    return compile_one


def find(parameters: int, batch_size: int, tried: list[Candidate] | None = None) -> list[Measured]:
    return search(
        list_meshes(8, 8),
        parameters=parameters,
        batch_size=batch_size,
        device_bytes=DEVICE,
        compile_one=formula(parameters, [] if tried is None else tried),  # type: ignore[arg-type]
    )


def test_the_fastest_that_fits_comes_first_and_no_mesh_is_compiled_further_than_needed() -> None:
    tried: list[Candidate] = []
    found = find(1_000_000_000, 64, tried)
    assert found[0].fits(DEVICE)
    assert (str(found[0].candidate.mesh), found[0].candidate.remat) == ("fsdp8", "none")
    fitting = [one.candidate.mesh for one in found if one.fits(DEVICE)]
    assert len(fitting) == len(set(fitting))
    assert len(tried) == len(found)


def test_what_recomputing_cannot_make_small_is_cut_into_microbatches() -> None:
    found = find(7_000_000_000, 1024)  # 128 examples on each device: 128 GiB even if all is recomputed
    best = found[0].candidate
    assert (best.remat, best.microbatches) == ("full", 2)


def test_a_state_that_alone_fills_the_devices_is_not_compiled() -> None:
    tried: list[Candidate] = []
    found = find(100_000_000_000, 64, tried)
    assert tried == []
    assert all("parameters and optimizer alone" in (one.problem or "") for one in found)
    assert not any(one.fits(DEVICE) for one in found)


def test_a_batch_is_raised_to_what_the_mesh_can_share() -> None:
    found = search([MeshShape(dp=8)], parameters=1, batch_size=3, device_bytes=DEVICE, compile_one=formula(1, []))  # type: ignore[arg-type]
    assert found[0].candidate.batch_size == 8


def test_the_plan_is_a_command_with_the_mesh_the_ways_of_computing_and_what_the_user_set() -> None:
    candidate = Candidate(mesh=MeshShape(fsdp=8), batch_size=16, microbatches=2, remat="full")
    best = Measured(candidate=candidate, options={TRITON_PRODUCTS: False})
    assert render_plan("llama2_7b", Measured(candidate=candidate)) == (
        "nightjar-models train llama2_7b --mesh fsdp8 --set batch_size=16 --set compute.remat=full "
        "--set compute.accumulate=2 --out OUT"
    )
    assert render_plan("llama2_7b", best, ["model.layers=40", "batch_size=8"]) == (
        'XLA_FLAGS="$XLA_FLAGS --xla_gpu_enable_triton_gemm=false" '
        "nightjar-models train llama2_7b --mesh fsdp8 --set model.layers=40 --set batch_size=16 "
        "--set compute.remat=full --set compute.accumulate=2 --out OUT"
    )


REFUSED = CompilerError(
    "the compiler refuses the program: INTERNAL: Couldn't find output tile sizes that satisfy hlo", HINT
)


def refuse_tiles(tried: list[Mapping[str, Any]], error: CompilerError = REFUSED) -> Any:
    def compile_one(options: Mapping[str, Any]) -> str:
        tried.append(options)
        if TRITON_PRODUCTS not in options or options[TRITON_PRODUCTS]:
            raise error
        return "compiled"

    return compile_one


def test_a_product_without_tiles_is_compiled_without_triton_and_so_is_all_that_follows() -> None:
    tried: list[Mapping[str, Any]] = []
    options: dict[str, Any] = {"xla_a": "1"}
    assert [compile_tiled(refuse_tiles(tried), options) for _ in range(2)] == ["compiled"] * 2
    without = {"xla_a": "1", TRITON_PRODUCTS: False}
    assert tried == [{"xla_a": "1"}, without, without]


@pytest.mark.parametrize(
    ("options", "error"), [({TRITON_PRODUCTS: True}, REFUSED), ({}, CompilerError("RESOURCE_EXHAUSTED: shared memory"))]
)
def test_a_refusal_stays_one_where_triton_is_wanted_or_it_says_something_else(
    options: dict[str, Any], error: CompilerError
) -> None:
    tried: list[Mapping[str, Any]] = []
    with pytest.raises(CompilerError) as raised:
        compile_tiled(refuse_tiles(tried, error), options)
    assert (raised.value, len(tried)) == (error, 1)


def test_the_command_hands_settings_and_options_to_the_compiler_and_to_the_plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The compiler is one that refuses Triton's tiles, then makes the recorded program of everything."""
    module = read_module(parse_hlo(lzma.decompress(RECORDED.read_bytes()), str(RECORDED)))
    asked: list[tuple[int, Mapping[str, Any]]] = []

    class Compiled:
        pass

    def compile_step(config: TrainConfig, _mesh: object, _cluster: object, options: Mapping[str, Any]) -> Any:
        asked.append((config.model.layers, dict(options)))  # type: ignore[union-attr]
        if TRITON_PRODUCTS not in options:
            raise REFUSED
        compiled: Any = Compiled()
        compiled.module = module
        return compiled

    monkeypatch.setattr(topology, "prepare_process", lambda: None)
    monkeypatch.setattr(ahead_compile, "compile_step", compile_step)
    fit("llama_tiny", devices="8", meshes=["fsdp8"], settings=["model.layers=2"], xla=["xla_a=1"], most=8, as_json=True)
    answer = json.loads(capsys.readouterr().out)["answers"][0]
    assert asked == [(2, {"xla_a": "1"}), (2, {"xla_a": "1", TRITON_PRODUCTS: False})]
    assert 'XLA_FLAGS --xla_a=1 --xla_gpu_enable_triton_gemm=false"' in answer["plan"]
    assert "--set model.layers=2" in answer["plan"]


@pytest.mark.parametrize("text", ["", "0", "x", "64..8", "8,", "8...16", "8..1000000", "16385"])
def test_what_is_no_number_of_devices_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--devices"):
        parse_devices(text)
