"""Results of rocprofv3 in JSON: kernels with their configuration, copies, and what is not valid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nightjar_profiling.errors import InputError
from nightjar_profiling.readers.chrome.chrome import read_raw

CPU, FIRST, SECOND = 10, 11, 12


def dispatch(agent: int, kernel: int, begin_ns: int, end_ns: int) -> dict[str, Any]:
    info = {"agent_id": {"handle": agent}, "queue_id": {"handle": 3}, "kernel_id": kernel, "group_segment_size": 64}
    info |= {"workgroup_size": {"x": 256, "y": 2, "z": 1}, "grid_size": {"x": 1000, "y": 4, "z": 1}}
    times = {"start_timestamp": begin_ns, "end_timestamp": end_ns}
    return {**times, "correlation_id": {"internal": begin_ns, "external": 0}, "dispatch_info": info}


def write(folder: Path, records: dict[str, Any]) -> Path:
    agents = [{"type": 1, "id": {"handle": CPU}}, *({"type": 2, "id": {"handle": gpu}} for gpu in (FIRST, SECOND))]
    result = {
        "metadata": {"pid": 9, "command": ["/usr/bin/python3", "train.py"]},
        "agents": agents,
        "kernel_symbols": [
            {"kernel_id": 1, "formatted_kernel_name": "gemm"},
            {"kernel_id": 2, "formatted_kernel_name": "add"},
        ],
        "buffer_records": records,
    }
    path = folder / "9_results.json"
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [result]}))
    return path


def test_kernels_and_copies_lie_on_their_device(tmp_path: Path) -> None:
    ends = {"src_agent_id": {"handle": CPU}, "dst_agent_id": {"handle": SECOND}}
    copies = [{"start_timestamp": 5, "end_timestamp": 9, "bytes": 80, **ends}]
    kernels = [dispatch(SECOND, 2, 20, 50), dispatch(FIRST, 1, 0, 7)]
    raw = read_raw(write(tmp_path, {"kernel_dispatch": kernels, "memory_copy": copies}))
    columns = ("device", "stream", "kernel", "start_ns", "duration_ns", "kind", "bytes")
    assert raw.tables["ops"].select(columns).rows() == [
        (0, "queue 3", "gemm", 0, 7, "kernel", None),
        (1, "copies", "copy from host to device", 5, 4, "memcpy", 80),
        (1, "queue 3", "add", 20, 30, "kernel", None),
    ]
    assert raw.tables["programs"]["name"].to_list() == ["python3"]
    assert raw.warnings == ()


def test_a_grid_is_counted_in_blocks(tmp_path: Path) -> None:
    kernels = read_raw(write(tmp_path, {"kernel_dispatch": [dispatch(FIRST, 1, 0, 7)]})).tables["kernels"]
    assert kernels.select("grid", "block", "shared_bytes").rows() == [("4,2,1", "256,2,1", 64)]


def test_a_kernel_of_an_unknown_device_is_the_files_fault(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"9_results\.json: not a valid list of trace events: 99"):
        read_raw(write(tmp_path, {"kernel_dispatch": [dispatch(99, 1, 0, 7)]}))
