"""Traces of other people's programs and tools, from a folder that the machine offers: does each become a page?

The folder is `traces` in that of `NIGHTJAR_TEST_DATA`; nothing is fetched. Each file in it, at any depth, is given to
`nightjar-profiling report`. What is not read is named with the reason. The times of devices are compared with what
other code sums up in the same file: JAX's `ProfileData`, sqlite3, or a plain reading of JSON. Time is that of the
processor, less what the command takes to start, for each 100 MB of the unpacked file.
"""

from __future__ import annotations

import gzip
import json
import resource
import sqlite3
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import polars as pl

from tests.bench.profiling.totals import sum_jax
from tests.bench.table import NotMeasuredError, Row
from tests.places import SHARED_DATA

FOLDER = SHARED_DATA / "traces"
LOADED, TOOLS = "public traces that become a page", "tools that wrote them"
OFF, SLOW = "public traces: device time, off by at most", "public traces of 10 MB and more: CPU time, at most"
TRACES_GOAL, TOOLS_GOAL, OFF_GOAL, SLOW_GOAL = 30.0, 6.0, 0.1, 2.0
LARGE_BYTES = 10_000_000
DEVICE_TABLES = ("KERNEL", "MEMCPY", "MEMSET")
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
MARKS = {  # what a file of a tool holds
    b"rocprofiler-sdk-tool": "rocprofv3",
    b"deviceProperties": "PyTorch (Kineto)",
    b'"cpu_op"': "PyTorch (Kineto)",
    b'"name": "hermes"': "Hermes",
    b"TracingStartedIn": "Chrome",
    b"devtools": "Chrome",
}
BY_NAME = {".xplane.pb": "JAX's profiler", ".sqlite": "Nsight Systems", ".zip": "nsys-jax"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a trace: exit code, its last line of stderr, processor time; and the device time in its tables."""

    trace: Path
    code: int
    reason: str
    cpu_s: float
    device_ns: int


def list_goals() -> list[str]:
    """The names of this part's goals."""
    return [LOADED, TOOLS, OFF, SLOW]


def measure() -> list[Row]:
    """Reports on each trace."""
    traces = sorted(path for path in FOLDER.rglob("*") if path.is_file()) if FOLDER.is_dir() else []
    if not traces:
        raise NotMeasuredError(f"{FOLDER} is not there: NIGHTJAR_TEST_DATA names its folder")
    with tempfile.TemporaryDirectory() as temporary:
        outcomes = []
        for number, trace in enumerate(traces):
            outcomes.append(report(trace, Path(temporary) / str(number)))
            print(f"{outcomes[-1].cpu_s:6.2f} s: {trace.relative_to(FOLDER)}", file=sys.stderr, flush=True)
        start_s = median(time_start() for _ in range(5))
    loaded = [outcome for outcome in outcomes if outcome.code == 0]
    for outcome in outcomes:
        if outcome.code:
            print(f"not read: {outcome.reason}", file=sys.stderr)
    tools = sorted({name_tool(outcome.trace) for outcome in loaded})
    print(f"tools: {', '.join(tools)}", file=sys.stderr)
    sums = [(outcome, sum_otherwise(outcome.trace)) for outcome in loaded]
    off = {outcome.trace.name: abs(outcome.device_ns / ns - 1) for outcome, ns in sums if ns}
    rates = {
        outcome.trace.name: (outcome.cpu_s - start_s) / size * 1e8
        for outcome in loaded
        if (size := measure_bytes(outcome.trace)) >= LARGE_BYTES
    }
    for name, rate in sorted(rates.items(), key=lambda item: -item[1]):
        print(f"{rate:6.2f} s per 100 MB: {name}", file=sys.stderr)
    return [
        Row(name=LOADED, ours=len(loaded), goal=TRACES_GOAL, better="higher", unit=f"of {len(traces)}"),
        Row(name=TOOLS, ours=len([tool for tool in tools if tool != "other"]), goal=TOOLS_GOAL, better="higher"),
        Row(name=OFF, ours=100 * max(off.values()), goal=OFF_GOAL, unit=f"% of {len(off)} compared"),
        Row(name=SLOW, ours=max(rates.values(), default=0.0), goal=SLOW_GOAL, unit="s per 100 MB"),
        Row(name="public traces of 10 MB and more: CPU time, median", ours=median(rates.values()), unit="s per 100 MB"),
    ]


def report(trace: Path, folder: Path) -> Outcome:
    """Makes a page of a trace with the command."""
    command = [sys.executable, "-m", "nightjar_profiling", "report", str(trace), "--out", str(folder)]
    begin = measure_children()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    cpu_s = measure_children() - begin
    device_ns = 0
    if done.returncode == 0:
        device_ns = int(pl.read_parquet(folder / "tables" / "ops.parquet")["duration_ns"].sum())
    errors = [line for line in done.stderr.splitlines() if line.startswith("error")]
    reason = (errors or done.stderr.splitlines()[-1:] or [str(trace)])[0]
    return Outcome(trace=trace, code=done.returncode, reason=reason, cpu_s=cpu_s, device_ns=device_ns)


def time_start() -> float:
    """What a report takes whatever the trace holds: one with a single event."""
    with tempfile.TemporaryDirectory() as temporary:
        trace = Path(temporary) / "one.json"
        trace.write_text('[{"ph": "X", "ts": 0, "dur": 1, "name": "one"}]')
        return report(trace, Path(temporary) / "capture").cpu_s


def measure_children() -> float:
    """Processor time of the processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def unpack(trace: Path) -> bytes:
    """The contents of a JSON file."""
    data = trace.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        return gzip.decompress(data)
    return data


def measure_bytes(trace: Path) -> int:
    """The size of what is in a file."""
    if trace.suffix == ".zip":
        with zipfile.ZipFile(trace) as archive:
            return sum(item.file_size for item in archive.infolist())
    return len(unpack(trace))


def name_tool(trace: Path) -> str:
    """The tool that wrote a trace."""
    for suffix, tool in BY_NAME.items():
        if trace.name.endswith(suffix):
            return tool
    data = unpack(trace)
    return next((tool for mark, tool in MARKS.items() if mark in data), "other")


def sum_otherwise(trace: Path) -> float:
    """The device time of a trace in ns, by code that is not ours; 0 where none reads it."""
    if trace.name.endswith(".xplane.pb"):
        return sum(sum_jax(trace).values())
    if trace.suffix == ".sqlite":
        return sum(sum_tables(trace))
    if trace.suffix == ".zip":
        return 0.0  # its numbers are compared with those of nsys-jax in other parts
    try:
        document = json.loads(unpack(trace))
    except ValueError:
        return 0.0
    if "rocprofiler-sdk-tool" in document:
        records = [result["buffer_records"] for result in document["rocprofiler-sdk-tool"]]
        runs = [run for record in records for kind in ("kernel_dispatch", "memory_copy") for run in record[kind]]
        return float(sum(run["end_timestamp"] - run["start_timestamp"] for run in runs))
    events = document.get("traceEvents", []) if isinstance(document, dict) else document
    chosen = [event for event in events if isinstance(event, dict) and event.get("cat") in DEVICE_CATEGORIES]
    return 1000 * sum(float(event.get("dur", 0)) for event in chosen)


def sum_tables(trace: Path) -> Iterator[int]:
    """What kernels, copies and fills take, by table of an nsys export."""
    with sqlite3.connect(f"file:{trace}?mode=ro", uri=True) as database:
        tables = {name for (name,) in database.execute("select name from sqlite_master where type = 'table'")}
        for name in tables & {f"CUPTI_ACTIVITY_KIND_{kind}" for kind in DEVICE_TABLES}:
            yield database.execute(f'select coalesce(sum("end" - start), 0) from {name}').fetchone()[0]
