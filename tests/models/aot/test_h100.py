"""What an H100 measured, beside what is said of the same programs without it.

`data/h100` holds four train steps as XLA compiled them on the device, kernels chosen by timing, with the step times and
the peak of the allocator in thirty steps of training (`measured.json` names hardware and versions): `gpt3_126m` and
`llama_125m` as they are, `llama2_7b` with 8 layers, `gpt3_5b` with 6 and a batch of 16.
"""

import json
import lzma
import os
import statistics
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nightjar_models.aot.estimate import estimate_step
from nightjar_models.hardware.target import list_targets, parse_cluster, read_target
from nightjar_models.measuring.hlo import parse_hlo
from nightjar_models.program.cost import count_cost
from nightjar_models.program.memory import (
    attention_workspace,
    find_traces,
    live_at_peak,
    missing_workspace,
    reserved_bytes,
)
from nightjar_models.program.module import Module, read_module
from tests.places import RECORDED

DATA = RECORDED / "h100"
MEASURED: dict[str, Any] = json.loads((DATA / "measured.json").read_text(encoding="utf-8"))["programs"]


@cache
def read_program(name: str) -> Module:
    return read_module(parse_hlo(lzma.decompress((DATA / f"{name}.hlo.pb.xz").read_bytes()), name))


ESTIMATED_US = {"gpt3_126m": 234_078, "llama_125m": 104_428, "gpt3_5b": 594_280, "llama2_7b": 1_544_626}


@pytest.mark.parametrize("name", MEASURED)
def test_an_estimated_step_takes_what_the_device_took(name: str) -> None:
    estimated = estimate_step(read_program(name), parse_cluster("h100")).step_s
    assert estimated == pytest.approx(statistics.median(MEASURED[name]["step_time_s"]), rel=0.1)
    assert round(estimated * 1e6) == ESTIMATED_US[name]  # a change of less than the tolerance is meant, too


@pytest.mark.parametrize("name", MEASURED)
def test_what_a_step_reserves_is_what_the_allocator_gave(name: str) -> None:
    given = MEASURED[name]["peak_memory_bytes"]
    assert 0 <= given - reserved_bytes(read_program(name)) < 4096  # the allocator rounds each value up to 256 bytes


@pytest.mark.parametrize("name", MEASURED)
def test_the_workspace_that_a_compiler_without_a_device_leaves_out_is_that_of_the_device(name: str) -> None:
    module = read_module(parse_hlo(lzma.decompress((DATA / f"{name}.hlo.pb.xz").read_bytes()), name))
    full = count_peak(module)
    assert missing_workspace(module) == 0
    backward = next(
        one for one, _ in module.executed() if "fmha" in one.custom_call_target and "Back" in one.custom_call_target
    )
    workspace = backward.shape.tuple_shapes[-1]
    (known,) = workspace.dimensions
    workspace.dimensions[0] = 0  # as ahead of time
    buffers = module.proto.buffer_assignment.logical_buffers
    max((one for one in buffers if one.defined_at.instruction_id == backward.id), key=lambda one: one.size).size = 0
    assert attention_workspace(backward) == known
    assert missing_workspace(module) == full - count_peak(module)


def test_the_workspace_counts_where_the_step_is_fullest_and_not_elsewhere() -> None:
    raised = dict.fromkeys(MEASURED, 0)
    for name in MEASURED:
        module = read_module(parse_hlo(lzma.decompress((DATA / f"{name}.hlo.pb.xz").read_bytes()), name))
        before = reserved_bytes(module)
        for one, _ in module.executed():
            if "fmha" in one.custom_call_target and "Back" in one.custom_call_target:
                one.shape.tuple_shapes[-1].dimensions[0] = 0
        raised[name] = reserved_bytes(module) - before  # a second time, beside that of the device, which is still there
    assert {name for name, more in raised.items() if more} == {"gpt3_5b", "llama2_7b"}


def count_peak(module: Module) -> int:
    assignment = module.proto.buffer_assignment
    sizes = {one.id: one.size for one in assignment.logical_buffers}
    (traces,) = find_traces(assignment).values()
    return sum(sum(live_at_peak(trace.events, sizes).values()) for trace in traces)


def test_a_scatter_within_a_fusion_moves_its_rows_alone() -> None:
    module = read_program("gpt3_126m")
    costs = {one.name: count_cost(module, one) for one, _ in module.executed() if "scatter" in one.name}
    ones = costs["input_scatter_fusion.1"]  # of the loss: one logit of each of 32 x 2,048 positions, of 13 GB
    assert ones.bytes < 32 * 2049 * 4 + 3 * 65536 * 4
    assert ones.added_rows == 0  # to float32, by one instruction of the memory: 6.6 us on the device
    rows = costs["input_scatter_fusion"]  # the embedding's gradient, in bfloat16: 54.6 ms on the device
    assert rows.added_rows == 65536
    assert rows.bytes == pytest.approx(3 * 65536 * 768 * 2, rel=0.01)  # read, and added to what is there


def test_only_additions_to_halves_wait_for_each_other() -> None:
    module = read_module(parse_hlo(lzma.decompress((DATA / "gpt3_126m.hlo.pb.xz").read_bytes()), "gpt3_126m"))
    fusion = next(one for one, _ in module.executed() if one.name == "input_scatter_fusion")
    body = module.computations[fusion.called_computation_ids[0]].instructions
    scatter = next(one for one in body if one.opcode == "scatter")
    combined = module.computations[scatter.called_computation_ids[0]]
    combined.root_id = next(one.id for one in combined.instructions if one.opcode == "parameter")
    assert count_cost(module, fusion).added_rows == 0  # the last one stays: nothing is read


def compile_preset(target: str, out: Path, *options: str) -> dict[str, Any]:
    """The facts of `gpt_tiny`, compiled by the command in a process of its own: JAX has one backend in each."""
    command = [sys.executable, "-m", "nightjar_models", "compile", "gpt_tiny", "--target", target, "--mesh", "dp1"]
    environment = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "XLA_FLAGS")}
    subprocess.run([*command, "--out", str(out), *options], check=True, capture_output=True, env=environment)
    (facts,) = json.loads((out / "result.json").read_text(encoding="utf-8"))["facts"]
    assert isinstance(facts, dict)
    return facts


@pytest.mark.gpu
def test_ahead_of_time_the_program_is_that_of_this_machines_gpu(tmp_path: Path) -> None:
    import jax

    kind = jax.devices()[0].device_kind
    target = next((name for name in list_targets() if read_target(name).name == kind), None)
    if target is None:
        pytest.skip(f"no target describes {kind}")
    tuned = f"xla_gpu_per_fusion_autotune_cache_dir={tmp_path / 'tuned'}"
    (tmp_path / "tuned").mkdir()
    for name, option in (("untimed", "xla_gpu_autotune_level=0"), ("timed", tuned)):  # the device first: it fills tuned
        device = compile_preset(target, tmp_path / f"{name}-device", "--on-device", "--xla", option)
        ahead = compile_preset(target, tmp_path / f"{name}-ahead", "--xla", option)
        assert ahead["ahead"]["kernels"] == device["ahead"]["kernels"]
        assert ahead["flops"] == device["flops"]
        assert ahead["ahead"]["reserved_bytes"] == pytest.approx(device["ahead"]["reserved_bytes"], rel=0.02)
