"""How long do questions to a thousand ranks take, and how much memory? Each runs in a process of its own.

A merged capture of 1,024 ranks with 14,080 thunks each; `summary` of a capture with a million ops; `--help`.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from nightjar_profiling.capture_folder.manifest import Manifest, write_manifest
from nightjar_profiling.capture_folder.tables import SCHEMAS, Tables, fill_table, make_table, write_tables
from nightjar_profiling.pipeline.ingest import publish_tables
from nightjar_profiling.pipeline.merge import merge_manifests, merge_tables
from tests.bench.table import Row

RANKS, EXECUTIONS, KERNELS, COLLECTIVES = 1024, 22, 600, 40
OPS = KERNELS + COLLECTIVES
QUERY_S, QUERY_MB, SUMMARY_S, HELP_S = 2.0, 500.0, 5.0, 0.4
QUERIES = {
    "op totals": "c.ops.group_by('program_id', 'instruction').agg(pl.col('duration_ns').sum(), pl.len())",
    "collective skew": "c.collectives.group_by('program_id', 'execution', 'instruction').agg(pl.col('wait_ns').max(), "
    "pl.col('rank').get(pl.col('duration_ns').arg_min()))",
    "per-rank totals": "c.ops.group_by('rank').agg(pl.col('duration_ns').sum(), pl.len())",
}
ASK = """
import json, re, sys, time
import polars as pl
import nightjar_profiling
start = time.perf_counter()
c = nightjar_profiling.load(sys.argv[1])
height = {query}.collect(engine="streaming").height
# Not ru_maxrss, which a process inherits from its parent.
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
print(json.dumps([time.perf_counter() - start, peak / 1024, height]))
"""


def write_rank(folder: Path, rank: int, executions: int) -> int:
    """One rank's capture: kernels and all-reduces in a fixed order; returns its device time in ns."""
    draw = np.random.default_rng(rank)
    names = pl.Series([f"fusion.{n}" for n in range(KERNELS)] + [f"all-reduce.{n}" for n in range(COLLECTIVES)])
    usual = np.random.default_rng(0).integers(2000, 90_000, OPS)
    took = np.maximum(100, usual * draw.normal(1, 0.05, (executions, OPS))).astype(np.int64).ravel()
    start = np.cumsum(took) - took + 1_700_000_000 * 10**9 + int(draw.integers(10**9))
    known = {"rank": 0, "device": 0, "program_id": 7, "execution": np.repeat(np.arange(executions), OPS)}
    numbers = np.tile(np.arange(OPS), executions)
    known |= {"instruction": names.gather(numbers), "start_ns": start, "duration_ns": took}
    labels = {"stream": "Stream #14(Compute)", "kernel": names.gather(numbers), "kind": "kernel"}
    ops = fill_table("ops", len(took), **known, **labels, launch_ns=start - 5000)
    communication = ops.filter(pl.col("instruction").str.starts_with("all")).select(list(known))
    sizes = {"kind": "all-reduce", "message_bytes": 1 << 20, "group_size": RANKS}
    instructions = {"program_id": 7, "opcode": "fusion:kLoop", "computation": "entry", "bytes": 4}
    lines = np.arange(OPS) % 100 + 1  # of the source; each instruction has a stack of one frame
    attribution = {"program_id": 7, "frame_id": lines, "weight": 1.0, "root_weight": 1.0, "how": "own"}
    frames = {"program_id": 7, "file": "/home/me/train.py", "function": "step"}
    tables = {name: make_table(name, ()) for name in SCHEMAS} | {
        "ops": ops,
        "collectives": fill_table("collectives", communication.height, **communication.to_dict(), **sizes),
        "programs": make_table("programs", [{"program_id": 7, "name": "jit_step", "fingerprint": "f"}]),
        "instructions": fill_table("instructions", OPS, name=names, **instructions),
        "frames": fill_table("frames", 100, frame_id=lines[:100], line=lines[:100], **frames),
        "attribution": fill_table("attribution", OPS, instruction=names, **attribution),
    }
    write_tables(folder / "tables", Tables(**tables))
    write_manifest(folder, Manifest(backend="jax", command=("train",), exit_code=0))
    return int(took.sum())


def make_merged(root: Path, ranks: int, executions: int) -> tuple[Path, int]:
    total_ns = sum(write_rank(root / f"rank{n}", n, executions) for n in range(ranks))
    folders = [root / f"rank{n}" for n in range(ranks)]
    merge_tables(folders, root / "all" / "tables")
    publish_tables(root / "all", merge_manifests(folders, []))
    return root / "all", total_ns


def ask(capture: Path, query: str) -> list[float]:
    program = ASK.format(query=query)
    runs = [
        subprocess.run([sys.executable, "-c", program, str(capture)], capture_output=True, check=True) for _ in range(3)
    ]
    return min(json.loads(run.stdout) for run in runs)


def best_command_s(*arguments: str) -> float:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "nightjar_profiling", *arguments], capture_output=True, check=True)
        times.append(time.perf_counter() - start)
    return min(times)


def list_goals() -> list[str]:
    asked = [f"1,024 ranks: {name}{what}" for name in QUERIES for what in ("", ", peak memory")]
    return ["--help", "summary of 1M ops", *asked, "nanoseconds lost in the merge"]


def measure() -> list[Row]:
    rows = [Row("--help", best_command_s("--help"), goal=HELP_S, unit="s")]
    with tempfile.TemporaryDirectory() as folder:
        million, _ = make_merged(Path(folder) / "million", 2, 800)
        rows.append(Row("summary of 1M ops", best_command_s("summary", str(million)), goal=SUMMARY_S, unit="s"))
    with tempfile.TemporaryDirectory() as folder:
        capture, total_ns = make_merged(Path(folder), RANKS, EXECUTIONS)
        for name, query in QUERIES.items():
            seconds, peak_mb, _ = ask(capture, query)
            rows.append(Row(f"1,024 ranks: {name}", seconds, goal=QUERY_S, unit="s"))
            rows.append(Row(f"1,024 ranks: {name}, peak memory", peak_mb, goal=QUERY_MB, unit="MB"))
        profile = json.loads((capture / "profile.json").read_text())
        rows.append(Row("nanoseconds lost in the merge", abs(total_ns - profile["device_time_ns"]), goal=0))
    return rows
