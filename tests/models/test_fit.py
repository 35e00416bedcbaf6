"""The search for a way to train needs no compiler: here memory is what a formula says."""

from __future__ import annotations

import pytest

from nightjar_models.ahead.fit import (
    STATE_BYTES,
    Candidate,
    Measured,
    list_meshes,
    parse_devices,
    render_plan,
    search,
)
from nightjar_models.errors import InputError
from nightjar_models.mesh import MeshShape

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


def test_the_plan_is_a_command_with_the_mesh_and_the_ways_of_computing() -> None:
    plan = render_plan("llama2_7b", Candidate(mesh=MeshShape(fsdp=8), batch_size=16, microbatches=2, remat="full"))
    assert plan == (
        "nightjar-models train llama2_7b --mesh fsdp8 --set batch_size=16 --set compute.remat=full "
        "--set compute.accumulate=2 --out OUT"
    )


@pytest.mark.parametrize("text", ["", "0", "x", "64..8", "8,", "8...16", "8..1000000", "16385"])
def test_what_is_no_number_of_devices_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--devices"):
        parse_devices(text)
