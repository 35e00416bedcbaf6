"""Reader of Chrome traces.

In: trace events in JSON (`chrome_events`). Out: a `Raw`. What counts as an op is the best that the trace has:

1. kernels, copies and fills of a GPU (PyTorch's categories, or the streams of `/device:GPU:n`), and ops of a TPU;
2. ops of a framework on the host (PyTorch's `cpu_op`, JAX's thunks with `hlo_op`);
3. all events that last, by lane.

The other events become ranges. An event of the host that encloses others counts with the time that they leave. An op of
PyTorch has the Python stack that the trace records; JAX's JSON has neither stacks nor HLO.
"""

from __future__ import annotations

import gc
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from nightjar_profiling.capture_folder.tables import fill_table, make_table
from nightjar_profiling.errors import InputError
from nightjar_profiling.readers.chrome.chrome_events import HINT, ChromeTrace, Event, Lane, collect_events, load_json
from nightjar_profiling.readers.chrome.chrome_nesting import cut_pieces
from nightjar_profiling.readers.chrome.chrome_stacks import CALLS, OP, PYTHON, Stacks, read_stacks
from nightjar_profiling.readers.chrome.rocprof import is_rocprof, read_rocprof
from nightjar_profiling.readers.kernels import summarise_kernels
from nightjar_profiling.readers.raw import Raw

KERNELS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
DEVICE = re.compile(r"/device:(?:GPU|TPU):(\d{1,9})")
DEVICE_LANE = re.compile(r"Stream #|XLA Ops$")
PYTORCH_STEP = "ProfilerStep#"
STEP = re.compile(rf"{PYTORCH_STEP}(\d{{1,18}})")
OPTIMIZER = "Optimizer.step#"
NOT_WORK = frozenset(("Trace", "gpu_user_annotation", "python_function", "overhead"))
PYTORCH = ("schemaVersion", "deviceProperties")
PROGRAM_ID = 1
COLUMNS = ("device", "program_id", "execution", "instruction", "stream", "kernel", "start_ns", "duration_ns", "kind",
           "thunk", "correlation_id", "bytes", "frame_id", "from_forward")  # fmt: skip
RANGES = ("thread", "domain", "range_id", "name", "start_ns", "duration_ns")
FUNCTIONS = "PyTorch records calls of functions, not lines: a line is where its function begins"
NO_STACKS = "the trace has no Python stacks: record with torch.profiler.profile(with_stack=True)"
NO_HLO = "JSON of JAX's profiler has neither HLO nor stacks, and at most a million events: give its *.xplane.pb instead"


@dataclass(slots=True)
class _Programs:
    """Program ids by name."""

    names: dict[str, int] = field(default_factory=dict)

    def number(self, name: str) -> int:
        """The id of a program."""
        return self.names.setdefault(name, PROGRAM_ID + len(self.names))


def read_raw(path: Path, rank: int = 0) -> Raw:
    """Reads a Chrome trace.

    Raises:
        InputError: missing, damaged, or JSON of another kind.
    """
    collects = gc.isenabled()
    gc.disable()  # it looks through millions of events again and again, which takes three times as long as reading them
    try:
        document = load_json(path)
        if is_rocprof(document):
            trace = read_rocprof(document)
        else:
            trace = collect_events(path, document)
        return _make_raw(path, trace, rank)
    except (TypeError, ValueError, AttributeError, LookupError, OverflowError, pl.exceptions.PolarsError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise InputError(f"{path}: not a valid list of trace events: {reason}.", HINT) from None
    finally:
        if collects:
            gc.enable()


def _make_raw(path: Path, trace: ChromeTrace, rank: int) -> Raw:
    stacks = read_stacks(trace)
    chosen, on_device = _choose_ops(trace)
    programs = _Programs()
    is_pytorch = any(key in trace.facts for key in PYTORCH)
    default = "PyTorch"
    if not is_pytorch:
        default = next(iter(trace.processes.values()), "") or "trace"
    listed = list(_list_ops(trace, chosen, on_device, programs, default, stacks))
    is_jax = any("hlo_op" in event.args for event in trace.events)
    columns = dict(zip(COLUMNS, zip(*listed, strict=True) if listed else [()] * len(COLUMNS), strict=True))
    frames = {"frame_id": pl.Int64, "from_forward": pl.Boolean}
    frame_columns = [pl.Series(name, columns.pop(name), kind) for name, kind in frames.items()]
    ops = fill_table("ops", len(listed), rank=rank, **columns)
    tables = {
        "ops": ops,
        "steps": make_table("steps", _make_steps(trace, rank)),
        "ranges": _make_ranges(trace, set(chosen), rank),
        "programs": make_table(
            "programs", ({"program_id": number, "name": name} for name, number in programs.names.items())
        ),
        "instructions": _make_instructions(ops),
        "frames": make_table("frames", ({**frame, "program_id": PROGRAM_ID} for frame in stacks.frames)),
        "attribution": _attribute(ops.with_columns(frame_columns)),
        "kernels": _make_kernels(trace, chosen, rank),
    }
    return Raw(
        tables=tables,
        programs={},
        warnings=tuple(f"{path.name}: {text}" for text in _warn(trace, stacks, is_jax=is_jax)),
        foreign=not is_jax,
    )


def _choose_ops(trace: ChromeTrace) -> tuple[list[int], bool]:
    """The numbers of the events that count as ops, and whether they ran on a device."""
    lanes = {
        lane
        for lane, name in trace.threads.items()
        if DEVICE_LANE.match(name) and DEVICE.match(trace.processes.get(lane[0], ""))
    }
    events = trace.events
    kernels = [n for n, event in enumerate(events) if event.category in KERNELS or event.lane in lanes]
    if kernels:
        return kernels, True
    ops = [n for n, event in enumerate(events) if event.category == OP or "hlo_op" in event.args]
    if ops:
        return ops, False
    lasting = [n for n, event in enumerate(events) if event.duration_ns and event.category not in NOT_WORK]
    return lasting or [n for n, event in enumerate(events) if event.duration_ns], False


def _list_ops(
    trace: ChromeTrace, chosen: list[int], on_device: bool, programs: _Programs, default: str, stacks: Stacks
) -> Iterator[tuple[Any, ...]]:
    """The ops, each with what `COLUMNS` names."""
    runs: dict[tuple[int, str], int] = {}
    devices = _number_devices(trace)
    kind = "thunk"
    if on_device:
        kind = "kernel"
    for number, start_ns, end_ns in _find_times(trace, chosen, on_device):
        event = trace.events[number]
        args = event.args
        program_id = programs.number(str(args.get("hlo_module") or default))
        correlation, size = args.get("correlation", args.get("correlation_id")), args.get("bytes")
        if not isinstance(correlation, int):
            correlation = None
        execution = None
        if "run_id" in args:
            execution = runs.setdefault((program_id, str(args["run_id"])), len(runs))
        frame = stacks.frame_of_event.get(number)
        if frame is None:
            frame = stacks.by_correlation.get(correlation)
        yield (
            _find_device(devices, event, on_device),
            program_id,
            execution,
            str(args.get("hlo_op") or event.name),
            _name_stream(trace, event, on_device),
            event.name,
            start_ns,
            end_ns - start_ns,
            KERNELS.get(event.category, kind),
            number,
            correlation,
            size if isinstance(size, int) else None,
            frame,
            number in stacks.from_forward,
        )


def _find_times(trace: ChromeTrace, chosen: list[int], on_device: bool) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of each op, or of its pieces where it encloses others."""
    if on_device:
        for number in chosen:
            yield number, trace.events[number].start_ns, trace.events[number].end_ns
        return
    lanes: dict[Lane, list[int]] = defaultdict(list)
    for number in chosen:
        lanes[trace.events[number].lane].append(number)
    for members in lanes.values():
        for position, start_ns, end_ns in cut_pieces([trace.events[number] for number in members]):
            yield members[position], start_ns, end_ns


def _number_devices(trace: ChromeTrace) -> dict[str, int]:
    """The numbers of the processes that are devices."""
    return {process: int(match[1]) for process, name in trace.processes.items() if (match := DEVICE.match(name))}


def _find_device(devices: Mapping[str, int], event: Event, on_device: bool) -> int:
    if event.lane[0] in devices:
        return devices[event.lane[0]]
    device = event.args.get("device", event.args.get("device_ordinal"))
    if isinstance(device, int) or (isinstance(device, str) and device.isdecimal()):
        return int(device)
    if on_device and event.lane[0].isdecimal():
        return int(event.lane[0])
    return 0


def _name_stream(trace: ChromeTrace, event: Event, on_device: bool) -> str:
    if on_device and "stream" in event.args:
        return str(event.args["stream"])
    return trace.threads.get(event.lane) or f"thread {event.lane[1]}"


def _make_steps(trace: ChromeTrace, rank: int) -> list[dict[str, Any]]:
    """The steps that the host marked; else those of an optimizer, each from the end of the one before."""
    steps = [*_find_marked_steps(trace)]
    if not steps:
        ends = sorted(event.end_ns for event in trace.events if event.name.startswith(OPTIMIZER))
        begins = [event.start_ns for event in trace.events[:1]] + ends
        steps = [(number, *span) for number, span in enumerate(zip(begins, ends, strict=False))]
    return [
        {"rank": rank, "step": number, "start_ns": start_ns, "duration_ns": end_ns - start_ns}
        for number, start_ns, end_ns in steps
    ]


def _find_marked_steps(trace: ChromeTrace) -> Iterator[tuple[int, int, int]]:
    seen = set()
    marked = [event for event in trace.events if event.name.startswith(PYTORCH_STEP) or "step_num" in event.args]
    for event in marked:
        match = STEP.fullmatch(event.name)
        if match is None:
            number = event.args.get("step_num")
        else:
            number = match[1]
        if event.category in NOT_WORK or not str(number).isdecimal() or number in seen:
            continue
        seen.add(number)
        yield int(str(number)), event.start_ns, event.end_ns


def _make_ranges(trace: ChromeTrace, chosen: set[int], rank: int) -> pl.DataFrame:
    threads: dict[Lane, int] = {}
    columns: dict[str, list[Any]] = {name: [] for name in RANGES}
    thread, domain, range_id, names, starts, durations = (column.append for column in columns.values())
    for number, (lane, name, category, start_ns, duration_ns, _) in enumerate(trace.events):
        if category in NOT_WORK or number in chosen or name.startswith("$"):
            continue
        thread(threads.setdefault(lane, len(threads)))
        domain(category or None)
        range_id(number)
        names(name)
        starts(start_ns)
        durations(duration_ns)
    return fill_table("ranges", len(columns["name"]), rank=rank, **columns)


def _make_instructions(ops: pl.DataFrame) -> pl.DataFrame:
    keys = ops.select("program_id", "instruction").unique(maintain_order=True)
    return make_table("instructions", ({"program_id": number, "name": name} for number, name in keys.iter_rows()))


def _attribute(ops: pl.DataFrame) -> pl.DataFrame:
    """The frames of each instruction by the time that they have of it."""
    key = ["program_id", "instruction"]
    shares = ops.group_by([*key, "frame_id"], maintain_order=True).agg(
        ns=pl.col("duration_ns").sum(), count=pl.len(), from_forward=pl.col("from_forward").all()
    )
    total = pl.col("ns").sum().over(key)
    weight = pl.when(total > 0).then(pl.col("ns") / total).otherwise(pl.col("count") / pl.col("count").sum().over(key))
    how = pl.when(pl.col("frame_id").is_null()).then(pl.lit("none")).when("from_forward").then(pl.lit("numbered"))
    return shares.select(*key, "frame_id", weight=weight, root_weight=weight, how=how.otherwise(pl.lit("own")))


def _make_kernels(trace: ChromeTrace, chosen: list[int], rank: int) -> pl.DataFrame:
    rows, devices = [], _number_devices(trace)
    for event in (trace.events[number] for number in chosen):
        args = event.args
        if event.category != "kernel" or "grid" not in args:
            continue
        percent = args.get("est. achieved occupancy %")
        rows.append(
            {
                "rank": rank,
                "device": _find_device(devices, event, on_device=True),
                "kernel": event.name,
                "duration_ns": event.duration_ns,
                "grid": ",".join(map(str, args["grid"])),
                "block": ",".join(map(str, args.get("block", ()))),
                "registers": args.get("registers per thread"),
                "shared_bytes": args.get("shared memory"),
                "occupancy": percent / 100 if isinstance(percent, (int, float)) else None,
            }
        )
    schema = {"rank": pl.Int64, "device": pl.Int64, "kernel": pl.String, "duration_ns": pl.Int64, "grid": pl.String,
              "block": pl.String, "registers": pl.Int64, "shared_bytes": pl.Int64, "occupancy": pl.Float64}  # fmt: skip
    return summarise_kernels(pl.DataFrame(rows, schema=schema, strict=False))


def _warn(trace: ChromeTrace, stacks: Stacks, *, is_jax: bool) -> Iterator[str]:
    categories = {event.category for event in trace.events}
    if is_jax:
        yield NO_HLO
    elif PYTHON in categories and stacks.frames:
        yield FUNCTIONS
    elif categories & {OP, *CALLS}:
        yield NO_STACKS
