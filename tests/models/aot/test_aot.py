"""What is read from a module that was compiled for eight H100 (`ahead_program.py`), without a GPU and without a plugin.

The expected numbers are worked out by hand from the program: six layers of (64, 1024) x (1024, 1024) on each device.
"""

import json
import lzma
import math
import re
import zipfile
from itertools import pairwise
from pathlib import Path

import pytest

from nightjar_models.aot import capture
from nightjar_models.aot.compile_warnings import find_warnings
from nightjar_models.aot.estimate import KERNEL_FLOOR_S, estimate_step
from nightjar_models.aot.record import fingerprint
from nightjar_models.aot.topology import find_plugin
from nightjar_models.errors import InputError
from nightjar_models.hardware.target import list_targets, parse_cluster, read_software, read_target
from nightjar_models.measuring.hlo import _classes, parse_hlo
from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.presets import PRESETS
from nightjar_models.program.kernels import kernel_kind, tally_kernels, tally_messages
from nightjar_models.program.memory import INFERRED, live_at_peak, reserved_bytes, top_buffers
from nightjar_models.program.module import Module, read_module
from nightjar_models.program.replica_groups import names_group, read_group
from tests.models.aot.program import DEVICES, LAYERS, PROGRAMS, ROWS, WIDTH, compile_program, recorded
from tests.places import RECORDED, ROOT

CLUSTER = parse_cluster(f"h100x{DEVICES}")
SHEET = {  # bf16, tf32, f32 and f64 of the matrix units
    "a100": (312e12, 156e12, 19.5e12, 19.5e12),
    "h100": (989.4e12, 494.7e12, 66.9e12, 66.9e12),
    "h200": (989.4e12, 494.7e12, 66.9e12, 66.9e12),
    "b200": (2250e12, 1125e12, 75e12, 37e12),
}


@pytest.fixture(scope="module")
def module() -> Module:
    return read_recorded("scan")


def read_recorded(name: str) -> Module:
    return read_module(parse_hlo(lzma.decompress(recorded(name).read_bytes()), name))


@pytest.mark.parametrize("name", list_targets())
def test_rates_from_units_and_clocks_are_those_of_the_data_sheet(name: str) -> None:
    rates = read_target(name).flops_per_s
    assert [rates[element] for element in ("bf16", "tf32", "f32", "f64")] == pytest.approx(SHEET[name], rel=0.02)


def test_the_h100_that_is_described_is_the_one_that_a_device_described_by_itself() -> None:
    recorded = RECORDED / "h100_device.pbtxt"  # dumped by XLA on an H100: jax 0.11.2, CUDA 13.0
    device, ours = (_read_text(text) for text in (recorded.read_text(encoding="utf-8"), read_target("h100").text))
    info = "gpu_device_info."
    software = {info + name for name in ("driver_version", "runtime_version", "compile_time_toolkit_version")}
    software |= {info + name for name in ("dnn_version", "cub_version", "kernel_mode_driver_version")}
    software |= {"runtime_version.major", *(f"dnn_version_info.{part}" for part in ("major", "minor", "patch"))}
    of_the_card = {info + name for name in ("device_memory_size", "model_str", "pci_bus_id", "numa_node")}
    of_the_host = {info + "device_interconnect_info.active_links"}  # a single GPU, without NVLink
    unknown_to_jaxlib_0_10 = {
        *(info + name for name in ("mem_clock_ghz", "reserved_shared_memory_per_block")),
        *(info + name for name in ("max_blocks_per_multiprocessor", "collective_memory_granularity")),
    }
    differ = {name for name in device | ours if device.get(name) != ours.get(name)}
    assert differ - {info + "cuda_compute_capability.minor"} <= (  # zero, which XLA leaves out
        software | of_the_card | of_the_host | unknown_to_jaxlib_0_10
    )
    assert not unknown_to_jaxlib_0_10 & ours.keys()


def _read_text(text: str) -> dict[str, object]:
    """A text protobuf as values by path; entries of a map by their key."""
    found: dict[str, object] = {}
    path: list[str] = []
    for name, brace, value in re.findall(r'(\w+)\s*(?::\s*|(\{))("[^"]*"|[^\s{}]*)|\}', text):
        if brace:
            path.append(name)
        elif not name:
            path.pop()
        elif name == "key":
            path[-1] += f"[{value}]"
        else:
            number = re.fullmatch(r"[0-9.]+", value)
            found[".".join([*path, name])] = round(float(value), 6) if number else value
    return found


def test_the_cudnn_that_is_compiled_for_is_the_locked_one_and_stands_in_every_description() -> None:
    lock = (ROOT / "docker" / "locks" / "aot.txt").read_text(encoding="utf-8")
    (locked,) = re.findall(r"^nvidia-cudnn-cu12==(\d+)\.(\d+)\.(\d+)", lock, re.MULTILINE)
    assert read_software()["cudnn"] == ".".join(locked), "write the lock's version into ahead/software.toml"
    for name in list_targets():
        text = read_target(name).text
        assert f'dnn_version: "{".".join(locked)}"' in text
        assert "dnn_version_info {{ major: {} minor: {} patch: {} }}".format(*locked) in text


def test_hosts_are_filled_and_a_part_of_one_is_refused_beyond_the_first() -> None:
    assert (parse_cluster("h100x4").topology, parse_cluster("b200x1024").topology) == ("1x1x4", "1x128x8")
    with pytest.raises(InputError, match="multiple") as refused:
        parse_cluster("h100x12")
    assert refused.value.hint == "use h100x16"
    with pytest.raises(InputError, match="expected one of a100, b200, h100, h200"):
        parse_cluster("h10x8")


def test_every_instruction_of_a_loop_counts_with_its_trips(module: Module) -> None:
    kernels = tally_kernels(module)
    assert (kernels["cuBLASLt"].count, kernels["cuBLASLt"].runs) == (3, 3 * LAYERS)  # forward, and two gradients
    assert kernels["cuBLASLt"].flops == 3 * LAYERS * 2 * (ROWS / DEVICES) * WIDTH * WIDTH
    layer = 2 * ((ROWS // DEVICES) * WIDTH * 2 + WIDTH * WIDTH)  # bfloat16: two activations and a weight
    assert kernels["cuBLASLt"].bytes == 3 * LAYERS * layer  # cuBLAS's workspace is not moved
    assert sum(work.runs for work in kernels.values()) > sum(work.count for work in kernels.values())


def test_messages_are_counted_as_nccl_tests_does(module: Module) -> None:
    messages = tally_messages(module, DEVICES)
    weights = LAYERS * WIDTH * WIDTH * 2
    assert messages["all-gather/8"].bytes == 2 * weights  # gathered in the forward and in the backward pass
    assert messages["all-reduce/8"].bytes == weights


def test_the_largest_value_at_the_peak_is_the_gradient_and_names_its_line(module: Module) -> None:
    first, temporary = top_buffers(module, 1)
    assert temporary.kind == "temp"  # however small beside those that stay
    assert (first.kind, first.bytes) == ("output", LAYERS * WIDTH * WIDTH * 2)
    assert first.line.startswith("ahead_program.py:")
    assert sum(one.bytes for one in top_buffers(module, 1000)) <= reserved_bytes(module)


def test_what_is_offloaded_to_the_host_takes_no_memory_of_the_device() -> None:
    module = read_recorded("scan")
    reserved, named = reserved_bytes(module), len(top_buffers(module, 1000))
    moved = max(module.proto.buffer_assignment.buffer_allocations, key=lambda one: one.size)
    moved.color = 5
    assert reserved_bytes(module) == reserved - moved.size
    assert len(top_buffers(module, 1000)) < named


def test_a_branch_that_may_not_run_is_said_to_be_counted() -> None:
    module = read_recorded("scan")
    one = next(instruction for instruction, _ in module.executed())
    one.opcode = "conditional"
    (warning,) = find_warnings("", module, "xla", {"xla"})
    assert warning == f"conditional {one.name}: all of its branches are counted, and a step runs one"


def test_temporary_values_at_the_peak_fill_their_allocation_though_the_compiler_renumbered_it() -> None:
    module = read_module(parse_hlo(lzma.decompress(recorded("scan").read_bytes()), "scan"))
    (trace,) = module.proto.buffer_assignment.heap_simulator_traces
    trace.buffer_allocation_index += 90  # as in every larger program: the index of a time before the last merging
    live = [one for one in top_buffers(module, 1000) if one.kind == "temp"]
    (reserved,) = (one.size for one in module.proto.buffer_assignment.buffer_allocations if one.index == 7)
    assert 0.98 * reserved < sum(one.bytes for one in live) <= reserved
    assert len(live) > 10


def test_a_value_without_a_line_has_that_of_the_nearest_that_uses_it_and_an_argument_its_name() -> None:
    module = read_module(parse_hlo(lzma.decompress(recorded("scan").read_bytes()), "scan"))
    largest = next(one for one in top_buffers(module, 1) if one.kind == "temp")
    assert largest.line
    assert not largest.line.endswith(INFERRED)
    made = next(one for one in module.instructions.values() if one.name == largest.instruction)
    made.metadata.Clear()
    again = next(one for one in top_buffers(module, 1) if one.kind == "temp")
    assert again.line.startswith("ahead_program.py:")
    assert again.line.endswith(INFERRED)
    arguments = {one.op_name: one.line for one in top_buffers(module, 1000) if one.kind == "argument"}
    assert arguments == {"weights": "", "x": ""}


def test_a_step_is_no_shorter_than_either_stream_and_hides_no_more_than_there_is(module: Module) -> None:
    step = estimate_step(module, CLUSTER)
    computing = step.compute_s + step.memory_s + step.latency_s
    assert step.step_s == pytest.approx(computing + step.exposed_s)
    assert (round(step.step_s * 1e9), round(step.exposed_s * 1e9)) == (476_559, 193_867)
    assert 0 < step.exposed_s < step.nvlink_s + step.network_s
    assert all(span.seconds >= KERNEL_FLOOR_S for span in step.spans if span.stream == "compute")
    for stream in ("compute", "communication"):
        spans = [span for span in step.spans if span.stream == stream]
        assert all(a.start_s + a.seconds <= b.start_s + 1e-12 for a, b in pairwise(spans))


def test_groups_are_read_from_lists_iotas_and_axes_of_a_mesh() -> None:
    instruction = _classes()["Instruction"]
    listed, iota, axes = instruction(), instruction(), instruction()
    for ids in ((0, 1), (2, 3, 4)):
        listed.replica_groups.add().replica_ids.extend(ids)
    assert read_group(listed, 5) == (2, 3, 4)
    recent = instruction()
    for one, form in ((iota, iota.collective_device_list.iota), (recent, recent.iota_replica_group_list)):
        form.groups, form.devices_per_group = 2, 4
        form.reshape_dims.extend((4, 2))
        form.transpose_perm.extend((1, 0))
        assert read_group(one, 8) == (0, 2, 4, 6)
    for size in (2, 4):
        axes.mesh_axes_replica_group_list.mesh.axes.add().size = size
    axes.mesh_axes_replica_group_list.axes.add().mesh_axis_index = 0
    assert read_group(axes, 8) == (0, 4)
    mesh = axes.mesh_axes_replica_group_list.mesh
    mesh.reordering.reshape_dims.extend((4, 2))
    mesh.reordering.transpose_perm.extend((1, 0))  # the mesh's devices are 0 2 4 6, 1 3 5 7
    assert read_group(axes, 8) == (0, 1)
    mesh.device_ids.extend((7, 6, 5, 4, 3, 2, 1, 0))
    assert read_group(axes, 8) == (7, 3)
    assert all(names_group(one) for one in (listed, iota, recent, axes))
    assert read_group(instruction(), 3) == (0, 1, 2)
    assert not names_group(instruction())  # a lint says so


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("__cublas$lt$matmul$f8", "cuBLASLt f8"),
        ("__cudnn$fmhaSoftmax", "cuDNN attention"),
        ("__cudnn$fmhaSoftmaxBackward", "cuDNN attention backward"),
        ("__cudnn$convForward", "cuDNN convolution"),
        ("te_gemm_v2_ffi", "TransformerEngine matmul"),
        ("te_norm_backward_ffi", "TransformerEngine norm"),
        ("te_dact_dbias_quantize_ffi", "TransformerEngine activation"),
        ("te_fused_attn_forward_ffi", "TransformerEngine attention"),
        ("te_scaled_upper_triang_masked_softmax_forward_ffi", "TransformerEngine softmax"),
        ("my_kernel", "custom call my_kernel"),
    ],
)
def test_custom_calls_are_named_by_whose_code_they_are(target: str, kind: str) -> None:
    assert kernel_kind(_classes()["Instruction"](opcode="custom-call", custom_call_target=target)) == kind


def test_a_product_of_transformer_engine_says_whether_it_scales() -> None:
    def kind(mode: int) -> str:
        config = f"{{config = {{rhs_transposed = true, scaling_mode = {mode} : i64, use_split_accumulator = false}}}}"
        call = _classes()["Instruction"](opcode="custom-call", custom_call_target="te_gemm_v2_ffi")
        call.backend_config = config.encode()
        return kernel_kind(call)

    assert kind(0) == "TransformerEngine matmul"
    assert kind(1) == kind(4) == kind(12) == "TransformerEngine matmul scaled"


def test_attention_that_was_asked_of_cudnn_and_did_not_come_out_is_a_lint_with_its_reason() -> None:
    module = read_module(parse_hlo(lzma.decompress(recorded("scan").read_bytes()), "scan"))
    refused = "xla (cudnn refused: layers in a pipeline)"
    said = "attention: cudnn was asked for, xla (cudnn refused: layers in a pipeline) was taken"
    assert find_warnings("", module, "xla", {"xla"}) == ()
    assert find_warnings("", module, "cudnn", {refused}) == (f"{said}, and no cuDNN attention kernel came out",)
    assert find_warnings("", module, "cudnn", {"cudnn"}) == (
        "attention: cudnn was asked for, and no cuDNN attention kernel came out",
    )
    call = next(one for one, _ in module.executed() if kernel_kind(one) == "cuBLASLt")
    call.custom_call_target = "__cudnn$fmhaSoftmax"
    assert find_warnings("", module, "cudnn", {"cudnn"}) == ()
    assert find_warnings("", module, "cudnn", {"cudnn", refused}) == (said,)  # some layers, not all


def test_a_sharding_that_is_met_by_copying_is_a_lint() -> None:
    module = read_module(parse_hlo(lzma.decompress(recorded("scan").read_bytes()), "scan"))
    log = "W spmd: Involuntary full rematerialization. The compiler\nI else\nW Involuntary full rematerialization"
    assert find_warnings(log, module, "xla", ()) == ("involuntary full rematerialization: 2 times",)


def test_memory_shared_between_values_is_free_when_the_last_is_gone() -> None:
    event = _classes()["HeapEvent"]
    events = [
        event(kind=0, buffer_id=1),
        event(kind=2, buffer_id=2, share_with_canonical_id=1),
        event(kind=1, buffer_id=1),
        event(kind=0, buffer_id=3),
        event(kind=1, buffer_id=2),
        event(kind=0, buffer_id=4),
    ]
    assert live_at_peak(events, {1: 10, 2: 10, 3: 5, 4: 9}) == {1: 10, 3: 5}


def test_a_capture_holds_the_program_and_says_that_it_is_an_estimate(module: Module, tmp_path: Path) -> None:
    step = estimate_step(module, CLUSTER)
    manifest = capture.render_manifest(["x"], {"packages": {}}, CLUSTER, [__file__])
    capture.write_capture(tmp_path, b"hlo", capture.render_timeline(step, "train_step", CLUSTER), manifest)
    with zipfile.ZipFile(tmp_path / "raw" / "rank0000.estimate.zip") as archive:
        timeline = json.loads(archive.read("timeline.json"))
    assert timeline["schema"] == "nightjar.estimate/1"
    assert len(timeline["start_ns"]) == len(step.spans) == len(timeline["instruction"])
    assert (tmp_path / "sources" / __file__.lstrip("/")).is_file()
    assert json.loads((tmp_path / "manifest.json").read_text())["backend"] == "estimate"


def scheduled(module: Module) -> list[str]:
    """The kinds of all that is dispatched, in the order of the schedule; ends of messages as `end`."""
    return ["end" if one.opcode.endswith("-done") else kernel_kind(one) for one, _ in module.executed()]


def test_a_collective_matrix_product_multiplies_while_each_message_travels() -> None:
    kinds = scheduled(read_recorded("ring"))
    begins = [place for place, kind in enumerate(kinds) if kind == "collective-permute"]
    ends = [place for place, kind in enumerate(kinds) if kind == "end"]
    assert len(begins) == len(ends) == 2 * (DEVICES - 1)  # the pieces of the first product, the sums of the second
    assert all("cuBLASLt" in kinds[begin:end] for begin, end in zip(begins, ends, strict=True))
    assert kinds.count("cuBLASLt") == 2 * DEVICES  # one for each piece: none were merged


def test_a_broadcast_on_gpus_is_a_collective_broadcast() -> None:
    kinds = scheduled(read_recorded("ring"))
    assert kinds.count("collective-broadcast") == 1
    assert "all-reduce" not in kinds


def test_products_in_fp8_and_their_gradients_are_multiplied_in_fp8() -> None:
    kernels = tally_kernels(read_recorded("fp8"))
    assert kernels["cuBLASLt f8"].count == 2 * 3  # plain and of experts: forward, and the gradients of both factors
    assert not {"cuBLASLt", "cuBLAS", "Triton matmul"} & kernels.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_recorded_program_is_what_the_compiler_makes_today(name: str) -> None:
    import jax

    if find_plugin() is None:
        pytest.skip("the CUDA plugin of JAX is not installed (docker/locks/aot.txt)")
    if jax.__version__ != "0.10.2":
        pytest.skip(f"the program was recorded with jax 0.10.2, this is {jax.__version__}")
    again, module = read_module(parse_hlo(compile_program(name), "compiled")), read_recorded(name)
    assert fingerprint(again) == fingerprint(module)
    assert math.isclose(estimate_step(again, CLUSTER).step_s, estimate_step(module, CLUSTER).step_s)


@pytest.mark.slow
def test_the_compiler_of_this_release_says_the_code_of_its_kernels(tmp_path: Path) -> None:
    if find_plugin() is None:
        pytest.skip("the CUDA plugin of JAX is not installed (docker/locks/aot.txt)")
    from nightjar_models.aot.compile import compile_step

    found = compile_step(PRESETS["gpt_tiny"](), MeshShape(), parse_cluster("h100x1"), {}, tmp_path, on_device=False)
    assert found.code_bytes > 100_000
    assert found.spill_bytes == 0
