"""What do capturing and the report cost?

Capture overhead is measured on every tiny workload, traced and untraced blocks of steps in turn in one process. The
page is measured on a synthetic capture of 100 thousand ops on four devices, with 400 stacks of 8 to 24 frames.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from nightjar_profiling.capture_folder.manifest import write_manifest
from nightjar_profiling.capture_folder.tables import SCHEMAS, Tables, fill_table, make_table, write_tables
from nightjar_profiling.capture_folder.tables import Row as TableRow
from nightjar_profiling.pipeline.ingest import publish
from tests.bench.profiling.attribution import TINY
from tests.bench.table import Row
from tests.machine import find_lack
from tests.profiling.capture_folder.test_manifest import MANIFEST
from tests.profiling.chromium import open_browser

OPCODES = ("fusion:kLoop", "fusion:kInput", "dot", "custom-call", "all-reduce", "copy", "transpose")
ON_SCREEN_MS = "new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(performance.now()), 0)))"
INSTRUCTIONS, STACKS, DEVICES, STEP_OPS = 2_000, 400, 4, 500
VIEWS = {"flame": ".flame .node", "lines": ".lines .row", "timeline": "canvas"}  # and what shows that one is drawn


def name_view(view: str) -> str:
    return f"report of 100k ops: {view} on the screen"


def list_goals() -> list[str]:
    overhead = [f"capture: step of {preset}, traced / untraced: wall time" for preset in TINY]
    return [*overhead, "report of 100k ops: size", *map(name_view, VIEWS)]


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        return [*measure_overhead(folder), *measure_page(folder)]


def measure_overhead(folder: Path) -> list[Row]:
    rows = []
    for preset in TINY:
        place = folder / preset
        place.mkdir()
        command = [sys.executable, "-m", "tests.bench.profiling.overhead_steps", str(place), preset]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        wall = found["ratios"]
        print(f"overhead of {preset}: {[round(one, 3) for one in wall]} at {found['step_s'] * 1e3:.1f} ms a step")
        name = f"capture: step of {preset}, traced / untraced: wall time"
        rows.append(Row(name, statistics.median(wall), goal=1.1, unit="x"))
    return rows


def measure_page(folder: Path) -> list[Row]:
    make_capture(folder / "100k", synthesize(100_000))
    size = (folder / "100k" / "report.html").stat().st_size
    return [
        Row("report of 100k ops: size", size / 1e6, goal=15.0, unit="MB"),
        *measure_drawing(folder / "100k" / "report.html"),
    ]


def measure_drawing(report: Path) -> list[Row]:
    """From opening the page until a view is on the screen, in headless Chromium; the median of five."""
    if (lack := find_lack("browser")) is not None:
        return [Row(name_view(view), lack=lack) for view in VIEWS]
    rows = []
    with tempfile.TemporaryDirectory() as name, open_browser(Path(name) / "profile") as page:
        for view, drawn in VIEWS.items():
            times = []
            for _ in range(5):
                page.open(report, f"#{view}")
                page.wait(f"document.querySelectorAll({drawn!r}).length > 0")
                times.append(page.value(ON_SCREEN_MS) / 1e3)
            rows.append(Row(name_view(view), statistics.median(times), goal=1.0, unit="s"))
    return rows


def make_capture(folder: Path, tables: Tables) -> None:
    manifest = replace(MANIFEST, command=("python", "train.py"))
    (folder / "raw").mkdir(parents=True)
    write_manifest(folder, manifest)
    write_tables(folder / "tables", tables)
    publish(folder, manifest, tables)


def synthesize(n_ops: int) -> Tables:
    """A program of 2,000 instructions, run on four devices with a stream for compute, copies and collectives each."""
    random = np.random.default_rng(0)
    frames: list[TableRow] = []
    leaves: list[int | None] = []
    for _ in range(STACKS):
        parent, depth = None, int(random.integers(8, 25))
        for level in range(depth):
            place = "venv/lib/python3.11/site-packages/flax" if level >= depth - 4 else "home/me/train"
            file, line = f"/{place}/{int(random.integers(8))}.py", int(random.integers(1, 80))
            row = {"program_id": 1, "frame_id": len(frames), "parent_id": parent, "file": file, "line": line}
            frames.append(row | {"function": f"f{int(random.integers(80))}"})
            parent = len(frames) - 1
        leaves.append(parent)
    kinds = random.integers(0, len(OPCODES), INSTRUCTIONS)
    names = [f"{OPCODES[kind].partition(':')[0]}.{number}" for number, kind in enumerate(kinds)]
    own = random.integers(0, STACKS, INSTRUCTIONS)
    known = {"program_id": 1}
    small: dict[str, list[TableRow]] = {
        "programs": [known | {"name": "jit_train_step", "fingerprint": "x"}],
        "frames": frames,
        "instructions": [
            known | {"name": n, "opcode": OPCODES[k], "op_name": n} for n, k in zip(names, kinds, strict=True)
        ],
        "attribution": [
            known | {"instruction": n, "frame_id": leaves[s], "weight": 1.0, "root_weight": 1.0, "how": "own"}
            for n, s in zip(names, own, strict=True)
        ],
    }
    ops = pl.concat([device_ops(n_ops // DEVICES, device, names, kinds) for device in range(DEVICES)])
    runs = ops.group_by("rank", "device", "program_id", "execution").agg(
        pl.col("start_ns").min(), (pl.col("start_ns") + pl.col("duration_ns")).max().alias("end_ns")
    )
    runs = runs.with_columns(duration_ns=pl.col("end_ns") - pl.col("start_ns"))
    made = {name: make_table(name, small.get(name, ())) for name in SCHEMAS}
    made |= {"ops": ops, "executions": fill_table("executions", runs.height, **runs.drop("end_ns").to_dict())}
    return Tables(**made)


def device_ops(n_ops: int, device: int, names: list[str], kinds: np.ndarray) -> pl.DataFrame:
    random = np.random.default_rng(device + 1)
    chosen = random.integers(0, INSTRUCTIONS, n_ops)
    duration = random.lognormal(9.5, 1.2, n_ops).astype(np.int64) + 200
    stream = np.where(kinds[chosen] == OPCODES.index("all-reduce"), 2, (random.random(n_ops) < 0.1).astype(int))
    start = np.empty(n_ops, np.int64)
    for number, mean_gap_ns in enumerate((2_000, 60_000, 60_000)):
        mine = stream == number
        gaps = random.exponential(mean_gap_ns, mine.sum()).astype(np.int64)
        start[mine] = np.cumsum(duration[mine] + gaps) - duration[mine]
    known = {"rank": 0, "device": device, "program_id": 1, "execution": np.arange(n_ops) // STEP_OPS}
    streams = np.array(["Stream #13", "Stream #14", "Stream #15"])[stream]
    named = {"instruction": np.array(names)[chosen], "kernel": "k", "stream": streams}
    return fill_table("ops", n_ops, **known, **named, start_ns=start, duration_ns=duration)
