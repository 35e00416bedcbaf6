"""How long does it take from an archive of nsys-jax to tables, and are the numbers those of nsys-jax?

The inputs are two real archives (NIGHTJAR_TEST_DATA): one alone, both merged, and one tiled, its events fifty times in
a row. Measured is the time to the four frames of nsys-jax's `load_profiler_data`: runs of programs, thunks with their
hidden time, collectives with their bandwidths, compile ranges. Ours holds host ranges besides. The time of all tables,
with every instruction, stack and attribution, which nsys-jax does not make, is told apart.

With NIGHTJAR_NSYS_JAX naming a checkout of NVIDIA/JAX-Toolbox, nsys-jax itself reads the same files in the same run.
"""

from __future__ import annotations

import io
import lzma
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import polars as pl

from nightjar_profiling.analyses.communication.collectives import make_collectives
from nightjar_profiling.analyses.communication.overlap import fill_hidden
from nightjar_profiling.hlo.hlo_dump import LazyPrograms
from nightjar_profiling.pipeline.ingest import make_tables
from nightjar_profiling.readers.nsys_jax.nsys_jax import HOST, TRACE, read_raw
from tests.bench.profiling.projection import cpu_seconds
from tests.bench.table import NotMeasuredError, Row
from tests.places import SHARED_DATA

DATA = SHARED_DATA / "nsys-jax"
NAMES = ("pax_fsdp4_4proc_proc0", "pax_fsdp4_4proc_proc1")
TILES = 50
TILED_GOAL_S = 3.0
CHECKOUT = "NIGHTJAR_NSYS_JAX"
RIVAL = """
import pathlib, resource, sys, time
from nsys_jax.protobuf_utils import ensure_compiled_protos_are_importable
from nsys_jax.data_loaders import load_profiler_data
def used():
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(r.ru_utime + r.ru_stime for r in map(resource.getrusage, kinds))
folder = pathlib.Path(sys.argv[1])
ensure_compiled_protos_are_importable(prefix=folder)
before = used()
load_profiler_data(folder)
print(used() - before)
"""


TILED = f"one archive, tiled {TILES} times, ranges of the host as"


def list_goals() -> list[str]:
    """The names of this part's goals."""
    faster = [f"{what}: times faster than nsys-jax" for what in ("one archive", "two archives, merged")]
    tiled = [f"{TILED} {form}" for form in ("Parquet", "CSV in xz")]
    equal = ("sums of hidden and of exposed time, relative difference", "bus bandwidths, largest relative difference")
    return [*faster, *tiled, "growth, tiled", *equal]


def measure() -> list[Row]:
    """The rows of this part."""
    if not DATA.is_dir():
        raise NotMeasuredError(f"{DATA} is not there: NIGHTJAR_TEST_DATA names its folder")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        one = DATA / f"{NAMES[0]}.zip"
        both = combine(folder / "both.zip")
        tiled, tiled_csv = (tile(one, folder / f"tiled-{form}.zip", form) for form in ("parquet", "csv.xz"))
        ours = {path: cpu_seconds(lambda path=path: load(path), 5) for path in (one, both)}  # type: ignore[misc]
        tiled_s, csv_s = (cpu_seconds(lambda path=path: load(path), 3) for path in (tiled, tiled_csv))  # type: ignore[misc]
        with zipfile.ZipFile(tiled_csv) as file:
            packed = file.read(HOST[1])
        rival = {path: time_nsys_jax(path, folder) for path in (one, both)}
        rows = []
        for path, what, goal in ((one, "one archive", 6), (both, "two archives, merged", 12)):
            theirs = rival[path]
            rows.append(Row(name=what, ours=ours[path], unit="s", rival="nsys-jax", rival_value=theirs))
            name = f"{what}: times faster than nsys-jax"
            if theirs is None:
                rows.append(Row(name=name, lack=f"no nsys-jax: {CHECKOUT} names its checkout"))
            else:
                rows.append(Row(name=name, ours=theirs / ours[path], goal=goal, better="higher", unit="x"))
        rows.append(Row(name=f"{TILED} Parquet (nsys-jax now)", ours=tiled_s, goal=TILED_GOAL_S, unit="s"))
        rows.append(Row(name=f"{TILED} CSV in xz (nsys-jax of 2024)", ours=csv_s, goal=TILED_GOAL_S, unit="s"))
        if (theirs := rival[one]) is not None:
            rows.append(Row(name="the same, in nsys-jax's time for one archive", ours=csv_s / theirs, unit="x"))
        floor_s = cpu_seconds(lambda: decompress_only(packed), 3)
        rows.append(Row(name="of CSV in xz, liblzma, which nothing of ours can make faster", ours=floor_s, unit="s"))
        rows.append(Row(name="CSV in xz: above liblzma, to Parquet", ours=(csv_s - floor_s) / tiled_s, unit="x"))
        rows.append(Row(name="growth, tiled", ours=tiled_s / ours[one] / TILES, goal=1.0, unit="x"))
        whole = cpu_seconds(lambda: make_tables(read_raw(one)), 2)
        rows.append(Row(name="one archive, all tables", ours=whole, unit="s"))
        return rows + compare_with_golden()


def decompress_only(packed: bytes) -> None:
    """What liblzma takes, without memory for the text."""
    decoder = lzma.LZMADecompressor()
    while not decoder.eof:
        decoder.decompress(packed, max_length=1 << 20)
        packed = b""


def load(path: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """What `load_profiler_data` makes; returns ops and collectives."""
    raw = read_raw(path)
    assert isinstance(raw.programs, LazyPrograms)
    collectives = make_collectives(raw.tables["ops"], raw.programs.communication())
    return fill_hidden(raw.tables["ops"], collectives), collectives


def combine(path: Path) -> Path:
    """Both archives in one, as nsys-jax-combine puts them together."""
    inputs = {name: zipfile.ZipFile(DATA / f"{name}.zip") for name in NAMES}
    sums = {name: {one.filename: one.CRC for one in file.infolist()} for name, file in inputs.items()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in sorted(set().union(*sums.values())):
            holders = [name for name in NAMES if member in sums[name]]
            if len({sums[name][member] for name in holders}) == 1:
                archive.writestr(member, inputs[holders[0]].read(member))
            else:
                for name in holders:
                    archive.writestr(f"{member}/{name}", inputs[name].read(member))
    for file in inputs.values():
        file.close()
    return path


def tile(source: Path, path: Path, form: str) -> Path:
    """An archive with the events of another many times over, each time later and under new range ids.

    The ranges of the host are stored as nsys-jax now does (`parquet`), or as the source has them (`csv.xz`).
    """
    with zipfile.ZipFile(source) as file, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in file.namelist():
            data = file.read(member)
            if member == TRACE:
                trace = pl.read_parquet(data).filter(pl.col("RangeId").is_not_null())
                buffer = io.BytesIO()
                shift(trace, ["Projected Start", "Orig Start"]).write_parquet(buffer)
                data = buffer.getvalue()
            elif member in HOST:
                buffer = io.BytesIO()
                ranges = shift(pl.read_csv(lzma.decompress(data)), ["Start (ns)", "End (ns)"])
                if form == "parquet":
                    ranges.write_parquet(buffer)
                    member, data = HOST[0], buffer.getvalue()
                else:
                    ranges.write_csv(buffer)
                    print("compressing 370 MB as nsys-jax does: minutes", file=sys.stderr, flush=True)
                    data = lzma.compress(buffer.getvalue())  # other presets are read in up to twice the time
            archive.writestr(member, data)
    return path


def shift(events: pl.DataFrame, times: list[str]) -> pl.DataFrame:
    """The events many times over."""
    length, ids = int(events[times[0]].max()) + 1, int(events["RangeId"].max()) + 1  # type: ignore[arg-type]
    number = [pl.col("RangeId"), pl.col("ParentId")]
    return pl.concat(
        events.with_columns(*(pl.col(t) + n * length for t in times), *(one + n * ids for one in number))
        for n in range(TILES)
    )


def time_nsys_jax(path: Path, folder: Path) -> float | None:
    """CPU seconds of nsys-jax, its processes included; None without a checkout."""
    checkout = os.environ.get(CHECKOUT)
    if checkout is None:
        print(f"{CHECKOUT} is not set: no rival for archives", file=sys.stderr)
        return None
    root = Path(checkout)
    extracted = folder / path.stem
    for archive in (path, root / ".github/workflows/nsys-jax/test_data" / f"{NAMES[0]}.zip"):
        with zipfile.ZipFile(archive) as file:  # the protos, which ours does without, are in the checkout's own archive
            wanted = None if archive == path else [name for name in file.namelist() if name.startswith("protos/")]
            file.extractall(extracted, wanted)
    environ = {**os.environ, "PYTHONPATH": str(root / ".github/container/nsys_jax"), "PATH": with_protoc(folder)}
    done = subprocess.run(
        [sys.executable, "-c", RIVAL, str(extracted)], env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    return float(done.stdout.splitlines()[-1])


def with_protoc(folder: Path) -> str:
    """PATH with a `protoc`, as grpcio-tools brings it."""
    (folder / "protoc").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m grpc_tools.protoc "$@"\n')
    (folder / "protoc").chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def compare_with_golden() -> list[Row]:
    """The largest difference to nsys-jax's own numbers, of both archives."""
    times = bandwidths = 0.0
    for number, name in enumerate(NAMES):
        ops, collectives = load(DATA / f"{name}.zip")
        thunks = pl.read_parquet(DATA / f"golden-proc{number}" / "frames" / "thunk.parquet")
        runs = pl.read_parquet(DATA / f"golden-proc{number}" / "frames" / "communication.parquet")
        hidden, exposed = (1e6 * float(thunks[name].sum()) for name in ("ProjDurHiddenMs", "ProjDurMs"))
        hidden_ns = int(ops["hidden_ns"].sum())
        ours = hidden_ns, int(ops["duration_ns"].sum()) - hidden_ns
        times = max(times, abs(ours[0] / hidden - 1), abs(ours[1] / exposed - 1))
        mine, theirs = collectives["busbw_gb_per_s"].sort(), runs["BusBandwidthGBPerSec"].sort()
        bandwidths = max(bandwidths, float((mine / theirs - 1).abs().to_numpy().max()))
        assert (len(ops), len(mine)) == (len(thunks), len(theirs)), "other thunks or collectives than nsys-jax's"
    return [
        Row(name="sums of hidden and of exposed time, relative difference", ours=times, goal=1e-9),
        Row(name="bus bandwidths, largest relative difference", ours=bandwidths, goal=1e-6),
    ]
