"""Roofline and memory."""

import pytest

from nightjar_profiling.analyses.memory import attribute_buffers, summarise_memory
from nightjar_profiling.analyses.roofline import Peak, find_peak, measure_roofline, read_peak
from nightjar_profiling.capture_folder.tables import Tables
from tests.profiling.tabled import op, tables

PEAK = Peak(name="toy", bytes_per_s=1e9, flops_per_s={"f32": 1e11}, source="this test")


def capture() -> Tables:
    """A compute-bound product (200 flops a byte), a memory-bound addition, and a loop of unknown cost."""
    instructions = [
        {"program_id": 1, "name": "dot.1", "flops": 2e5, "bytes_accessed": 1000},
        {"program_id": 1, "name": "add.1", "flops": 100.0, "bytes_accessed": 1000},
        {"program_id": 1, "name": "while.1"},
    ]
    ops = [op("dot.1", 0, 4000), op("dot.1", 0, 4000), op("add.1", 0, 2000), op("while.1", 0, 500)]
    return tables(instructions=instructions, ops=ops)


def test_the_roofline_fraction_is_relative_to_the_limit_at_that_intensity() -> None:
    rows = {row["instruction"]: row for row in measure_roofline(capture(), PEAK, "f32").rows(named=True)}
    assert (rows["dot.1"]["bound"], rows["dot.1"]["count"]) == ("compute", 2)
    assert rows["dot.1"]["roofline_fraction"] == pytest.approx((2e5 / 4e-6) / 1e11)
    assert rows["add.1"]["bound"] == "memory"
    assert rows["add.1"]["roofline_fraction"] == pytest.approx((1000 / 2e-6) / 1e9)
    assert (rows["while.1"]["bound"], rows["while.1"]["roofline_fraction"]) == (None, None)


def test_the_peak_is_that_of_the_first_device() -> None:
    a100 = read_peak({"devices": ["NVIDIA A100-SXM4-40GB"]})
    assert a100 is not None
    assert a100.bytes_per_s == 1.555e12
    assert read_peak({"devices": ["cpu"]}) is read_peak({}) is None


def test_a_device_without_a_known_peak_has_rates_and_no_fractions() -> None:
    rows = measure_roofline(capture(), find_peak("cpu"))
    assert rows["flops_per_s"].drop_nulls().len() == 2
    assert rows["roofline_fraction"].null_count() == rows.height


def test_an_operand_type_that_the_peak_lacks_is_unknown() -> None:
    assert measure_roofline(capture(), PEAK, "f8")["roofline_fraction"].null_count() == 3


def test_several_kernels_of_one_thunk_are_one_run_of_the_instruction() -> None:
    instructions = [{"program_id": 1, "name": "dot.1", "flops": 10.0, "bytes_accessed": 1}]
    ops = [op("dot.1", 0, 5, thunk=1), op("dot.1", 5, 5, thunk=1)]
    (row,) = measure_roofline(tables(instructions=instructions, ops=ops), None).rows(named=True)
    assert row["count"] == 1
    assert row["flops_per_s"] == pytest.approx(10 / 10e-9)


@pytest.mark.parametrize("kind", ["NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA B200"])
def test_the_peaks_of_data_centre_devices_name_their_source(kind: str) -> None:
    peak = find_peak(kind)
    assert peak is not None
    assert "NVIDIA" in peak.source
    assert peak.flops_per_s["bf16"] > peak.flops_per_s["f32"] > peak.bytes_per_s


def test_a_device_of_another_name_has_no_peak() -> None:
    assert find_peak("NVIDIA H200 NVL") is None
    assert find_peak(None) is None


def test_peak_memory_is_given_by_kind_and_by_stack() -> None:
    found = tables(
        programs=[{"program_id": 1, "name": "jit_f"}],
        instructions=[
            {"program_id": 1, "name": "dot.1", "frame_id": 3, "op_name": "jit(f)/dot"},
            {"program_id": 1, "name": "parameter.1", "op_name": "params['w']"},
            {"program_id": 1, "name": "copy.1"},
        ],
        attribution=[
            {"program_id": 1, "instruction": "copy.1", "frame_id": 5, "weight": 1, "root_weight": 1, "how": "operand"}
        ],
        buffers=[
            {"program_id": 1, "instruction": "dot.1", "kind": "temp", "size_bytes": 100},
            {"program_id": 1, "instruction": "parameter.1", "kind": "parameter", "size_bytes": 700},
            {"program_id": 1, "instruction": "copy.1", "kind": "output", "size_bytes": 50},
            {"program_id": 1, "instruction": None, "kind": "temp", "size_bytes": 6},
        ],
    )
    (row,) = summarise_memory(found).rows(named=True)
    assert row == {
        **{"program_id": 1, "name": "jit_f", "peak_bytes": 856, "parameter_bytes": 700, "constant_bytes": 0},
        **{"output_bytes": 50, "temp_bytes": 106},
    }
    buffers = attribute_buffers(found)
    assert buffers.select("instruction", "size_bytes", "op_name", "frame_id").rows() == [
        ("parameter.1", 700, "params['w']", None),
        ("dot.1", 100, "jit(f)/dot", 3),
        ("copy.1", 50, None, 5),
        (None, 6, None, None),
    ]


def test_instructions_of_equal_time_are_in_the_order_of_programs_and_names() -> None:
    ran = [("b", 1, 5), ("a", 2, 5), ("a", 1, 5), ("z", 2, 9)]
    ops = [{**op(name, 0, duration), "program_id": program} for name, program, duration in ran]
    rows = measure_roofline(tables(ops=ops), PEAK, "f32").select("program_id", "instruction").rows()
    assert rows == [(2, "z"), (1, "a"), (1, "b"), (2, "a")]
