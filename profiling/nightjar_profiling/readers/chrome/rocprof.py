"""Kernels and copies of a result of AMD's rocprofv3.

In: its JSON (`rocprofv3 --output-format json`). Out: a `ChromeTrace`: the kernels with their configuration and the
copies, by device and queue. It records neither ops nor Python. AMD counts a grid in threads; here it is in blocks, as
NVIDIA and PyTorch count it.

Source: ROCm/rocprofiler-sdk:source/docs/rocprofv3-schema.json
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from nightjar_profiling.readers.chrome.chrome_events import ChromeTrace, Event

RESULT = "rocprofiler-sdk-tool"
GPU = 2  # type of an agent
AXES = ("x", "y", "z")


def is_rocprof(document: Any) -> bool:
    """Whether JSON is a result of rocprofv3."""
    return isinstance(document, dict) and isinstance(document.get(RESULT), list)


def read_rocprof(document: Mapping[str, Any]) -> ChromeTrace:
    """The events of a result of one or more processes.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: it is not what the schema says.
    """
    events: list[Event] = []
    processes: dict[str, str] = {}
    for result in document[RESULT]:
        metadata = result["metadata"]
        command = metadata.get("command") or ["program"]
        processes[f"process {metadata.get('pid')}"] = PurePath(command[0]).name
        gpus = [agent["id"]["handle"] for agent in result["agents"] if agent.get("type") == GPU]
        devices = {handle: number for number, handle in enumerate(gpus)}
        names = {symbol["kernel_id"]: symbol["formatted_kernel_name"] for symbol in result["kernel_symbols"]}
        records = result["buffer_records"]
        events += [_read_dispatch(record, devices, names) for record in records.get("kernel_dispatch", ())]
        events += _read_copies(records.get("memory_copy", ()), devices)
    events.sort(key=lambda event: (event.start_ns, -event.duration_ns))
    return ChromeTrace(events=events, processes=processes, threads={}, facts={})


def _read_dispatch(record: Mapping[str, Any], devices: Mapping[int, int], names: Mapping[int, str]) -> Event:
    dispatch = record["dispatch_info"]
    device, queue = devices[dispatch["agent_id"]["handle"]], dispatch["queue_id"]["handle"]
    block = [dispatch["workgroup_size"][axis] for axis in AXES]
    args = {
        "device": device,
        "stream": f"queue {queue}",
        "correlation": record["correlation_id"]["internal"],
        "grid": [-(-dispatch["grid_size"][axis] // max(size, 1)) for axis, size in zip(AXES, block, strict=True)],
        "block": block,
        "shared memory": dispatch.get("group_segment_size"),
    }
    return _make_event(record, (str(device), str(queue)), names[dispatch["kernel_id"]], "kernel", args)


def _read_copies(records: Any, devices: Mapping[int, int]) -> Iterator[Event]:
    for record in records:
        ends = [record.get(key, {}).get("handle") for key in ("dst_agent_id", "src_agent_id")]
        device = next((devices[handle] for handle in ends if handle in devices), 0)
        kinds = ["device" if handle in devices else "host" for handle in reversed(ends)]
        args = {"device": device, "stream": "copies", "bytes": record.get("bytes")}
        yield _make_event(record, (str(device), "copies"), f"copy from {kinds[0]} to {kinds[1]}", "gpu_memcpy", args)


def _make_event(
    record: Mapping[str, Any], lane: tuple[str, str], name: str, category: str, args: Mapping[str, Any]
) -> Event:
    start_ns = int(record["start_timestamp"])
    return Event(lane, name, category, start_ns, max(int(record["end_timestamp"]) - start_ns, 0), args)
