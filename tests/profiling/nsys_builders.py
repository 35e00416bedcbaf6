"""Small runs as nsys and nsys-jax write them, written as few words as a test can read."""

import io
import lzma
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl

from nightjar_profiling.protos import hlo_pb2

PID, TID = 100, 101
Layout = Literal["A", "B", "C"]


@dataclass(frozen=True, kw_only=True)
class Projected:
    """A range with work on the device, as `nvtx_gpu_proj_trace` gives it."""

    number: int
    title: str
    start: int
    duration: int
    parent: int | None = None
    domain: str = "TSL"
    n_ops: int = 1
    tid: int = TID


def module(number: int, start: int, duration: int, name: str = "jit_step", program_id: int | None = 7) -> Projected:
    told = "" if program_id is None else f",program_id={program_id}"
    return Projected(
        number=number, title=f"XlaModule:#hlo_module={name}{told}#", start=start, duration=duration, n_ops=4
    )


def thunk(number: int, parent: int, hlo_op: str, start: int, duration: int) -> Projected:
    title = f"Thunk:#name=jit(step)/dot[a=(1, 2)],hlo_op={hlo_op}#"
    return Projected(number=number, parent=parent, title=title, start=start, duration=duration)


STEP = (module(1, 1000, 300), thunk(2, 1, "dot.1", 1000, 200), thunk(3, 1, "add.1", 1210, 90))


@dataclass(frozen=True, kw_only=True)
class Host:
    number: int
    name: str
    start: int
    duration: int
    parent: int | None = None
    tid: int = TID


def trace_table(ranges: Sequence[Projected], layout: Layout = "A") -> pl.DataFrame:
    """`trace.parquet` in one of its layouts."""
    whole = pl.Int64
    common = {"PID": [PID] * len(ranges), "TID": [one.tid for one in ranges], "Rank": [0] * len(ranges)}
    if layout == "A":
        columns = {
            "Name": [f"{one.domain}:{one.title}" for one in ranges],
            "Projected Start": [one.start for one in ranges],
            "Projected Duration": [one.duration for one in ranges],
            "Orig Start": [float(one.start - 500) for one in ranges],
            "Orig Duration": [40.0] * len(ranges),
            "Style": ["PushPop"] * len(ranges),
            "NumGPUOps": [one.n_ops for one in ranges],
            "RangeId": [float(one.number) for one in ranges],
            "ParentId": [None if one.parent is None else float(one.parent) for one in ranges],
        }
        nameless = {"Name": None, "Projected Start": 5, "Projected Duration": 9, "NumGPUOps": 2, "PID": PID, "TID": TID}
        table = pl.DataFrame(columns | common, schema_overrides={"ParentId": pl.Float64})
        return pl.concat([pl.DataFrame([nameless], schema_overrides={"Name": pl.String}), table], how="diagonal")
    columns = {
        "Text": [one.title for one in ranges],
        "Start": [one.start for one in ranges],
        "End": [one.start + one.duration for one in ranges],
        "Children Count": [0] * len(ranges),
        "Range ID": [one.number for one in ranges],
        "Parent ID": [one.parent for one in ranges],
        "Range Stack": [[one.number] for one in ranges],
        "Stack Level": [0] * len(ranges),
    }
    if layout == "C":
        columns["Domain"] = [one.domain for one in ranges]
    return pl.DataFrame(columns | common, schema_overrides={"Parent ID": whole})


def host_table(ranges: Sequence[Host]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "Start (ns)": [one.start for one in ranges],
            "End (ns)": [one.start + one.duration for one in ranges],
            "Duration (ns)": [one.duration for one in ranges],
            "DurChild (ns)": [0] * len(ranges),
            "DurNonChild (ns)": [0] * len(ranges),
            "Name": [one.name for one in ranges],
            "TID": [one.tid for one in ranges],
            "NumChild": [0] * len(ranges),
            "RangeId": [one.number for one in ranges],
            "ParentId": [one.parent for one in ranges],
            "RangeStack": [f":{one.number}" for one in ranges],
        },
        schema_overrides={"ParentId": pl.Int64},
    )


def launcher(tid: int, process: int, local: int, last: str = "slice") -> tuple[str, int]:
    return f"XlaLauncher:#global={process * 2 + local},local={local},process={process},{last}=0#", tid


def archive_files(
    ranges: Sequence[Projected] = STEP,
    host: Sequence[Host] = (),
    threads: Sequence[tuple[str, int]] = (),
    programs: Sequence[tuple[int, hlo_pb2.HloProto]] = (),
    layout: Layout = "A",
) -> dict[str, bytes]:
    names = [name for name, _ in threads]
    thread_table = pl.DataFrame(
        {"Name": names, "Priority": 0, "PID": PID, "TID": [tid for _, tid in threads]},
        schema_overrides={"Name": pl.String, "TID": pl.Int64, "PID": pl.Int64},
    )
    files = {
        "nvtx_gpu_proj_trace/trace.parquet": parquet(trace_table(ranges, layout)),
        "thread-metadata.parquet": parquet(thread_table),
    }
    if layout == "A":
        files["report_nvtx_pushpop_trace.csv.xz"] = lzma.compress(host_table(host).write_csv().encode())
    else:
        files["report_nvtx_pushpop_trace.parquet"] = parquet(host_table(host))
    for number, proto in programs:
        name = f"dump/module_{number:04}.{proto.hlo_module.name}.sm_9.0_gpu_after_optimizations.hlo.pb.xz"
        files[name] = lzma.compress(proto.SerializeToString())
    return files


def combine(processes: dict[str, dict[str, bytes]]) -> dict[str, bytes]:
    """What nsys-jax-combine makes of archives: a file that differs becomes a folder of one for each."""
    combined = {}
    for name in sorted({name for files in processes.values() for name in files}):
        versions = {process: files[name] for process, files in processes.items() if name in files}
        if len(set(versions.values())) == 1:
            combined[name] = next(iter(versions.values()))
        else:
            combined |= {f"{name}/{process}": data for process, data in versions.items()}
    return combined


def write_archive(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def parquet(table: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    return buffer.getvalue()
