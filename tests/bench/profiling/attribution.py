"""How much of the device time is mapped to a Python line, on real programs?

Captures every workload of models/ (and one on eight devices, one with its layers scanned) and two toys (a scan over
layers, rematerialisation inside it) on the CPU. With the two A100 archives at hand, those too.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nightjar_models.presets import PRESETS
from tests.bench.table import NotMeasuredError, Row
from tests.places import SHARED_DATA

DIRECT, EXPLAINED, USER = 0.97, 0.999, 0.90  # goals: shares of the device time
TOY = """
import jax
import jax.numpy as jnp

def layer(x, w):
    y = jnp.tanh(x @ w)
    return x + y, None

def loss(ws, x):
    y, _ = jax.lax.scan({body}, x, ws)
    return jnp.mean(y * y)

step = jax.jit(jax.value_and_grad(loss))
ws, x = jnp.ones((6, 256, 256)) * 0.01, jnp.ones((64, 256))
for n in range(6):
    with jax.profiler.StepTraceAnnotation("train", step_num=n):
        jax.block_until_ready(step(ws, x))
"""
TOYS = {"scan": TOY.format(body="layer"), "remat and scan": TOY.format(body="jax.checkpoint(layer)")}
TINY = tuple(preset for preset in PRESETS if preset.endswith("_tiny"))
SCANNED = "compute.scan_layers=true"
WORKLOADS: dict[str, tuple[str, ...]] = {
    **{preset: (preset,) for preset in TINY},
    "gpt_tiny dp2.fsdp2.tp2": ("gpt_tiny", "--mesh", "dp2.fsdp2.tp2"),
    "gpt_tiny scanned": ("gpt_tiny", "--set", SCANNED),
}
ARCHIVES = SHARED_DATA / "nsys-jax"
NAMES = ("pax_fsdp4_4proc_proc0", "pax_fsdp4_4proc_proc1")
COUNTED = "direct, and combined collectives by their operands"


def list_goals() -> list[str]:
    captures = [*(name for name in WORKLOADS), *(f"toy {name}" for name in TOYS)]
    explained = [f"{name}: {what}" for name in captures for what in ("direct and inferred", "user's own code")]
    direct = [f"{name}: direct" for name, chosen in WORKLOADS.items() if SCANNED not in chosen]
    archives = [f"{name}, {what}: direct and inferred" for name in NAMES for what in ("all time", "exposed time")]
    return [*explained, *direct, *archives, *(f"{name}, exposed time: {COUNTED}" for name in NAMES)]


def measure() -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name, chosen in WORKLOADS.items():
            out = place / name.replace(" ", "_")
            train = ["nightjar-models", "train", *chosen, "--steps", "6", "--out", str(out / "train")]
            profile = capture(out, ["--steps", "3:5", "--user-code", "nightjar_models"], train)
            rows += shares(name, profile, direct_goal=None if SCANNED in chosen else DIRECT)
        for name, text in TOYS.items():
            out = place / name.replace(" ", "_")
            out.mkdir()
            (out / "toy.py").write_text(text)
            profile = capture(out, ["--steps", "2:5"], [sys.executable, str(out / "toy.py")])
            rows += shares(f"toy {name}", profile, direct_goal=None)
    try:
        return rows + measure_archives()
    except NotMeasuredError as error:
        missing = [name for name in list_goals() if name.startswith(NAMES)]
        return rows + [Row(name, lack=str(error)) for name in missing]


def capture(out: Path, options: list[str], command: list[str]) -> dict[str, Any]:
    """The profile of a program; 4 is an answer too: nothing could be attributed."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    profiler = [sys.executable, "-m", "nightjar_profiling", "capture", *options, "--out", str(out / "capture")]
    done = subprocess.run([*profiler, "--", *command], env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 4):
        raise SystemExit(f"{' '.join(command)}: capture ended with {done.returncode}:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads((out / "capture" / "profile.json").read_text())
    return found


def shares(name: str, profile: Mapping[str, Any], *, direct_goal: float | None) -> list[Row]:
    """The three shares of a capture; without scan direct attribution has a goal of its own."""
    direct, inferred = profile["direct_fraction"], profile["inferred_fraction"]
    wanted = (
        ("direct", direct, direct_goal),
        ("direct and inferred", direct + inferred, EXPLAINED),
        ("user's own code", profile["user_fraction"], USER),
    )
    return [
        Row(f"{name}: {what}", 100 * value, goal=None if goal is None else 100 * goal, better="higher", unit="%")
        for what, value, goal in wanted
    ]


def measure_archives() -> list[Row]:
    """The A100 archives in their steady state: by all time, and without hidden communication, as nsys-jax counts it.

    The goal of 98.3 % is of a count by which a collective that XLA combined out of many is as direct as its operands.
    Such a collective has no stack of its own, and ours counts it as inferred: the goal stands beside that count.
    """
    import polars as pl

    from nightjar_profiling.analyses.warmup import keep_steady_state
    from nightjar_profiling.attribution.apportion import apportion_time
    from nightjar_profiling.attribution.attribute import DIRECT as DIRECT_HOWS
    from nightjar_profiling.capture_folder.tables import Tables
    from nightjar_profiling.hlo.collective_kinds import KINDS
    from nightjar_profiling.pipeline.ingest import make_tables
    from nightjar_profiling.readers.detect import find_kind

    rows = []
    if not ARCHIVES.is_dir():
        raise NotMeasuredError(f"{ARCHIVES} is not there: NIGHTJAR_TEST_DATA names its folder")
    for path in sorted(ARCHIVES.glob("*.zip")):
        raw = find_kind(path).read(path)
        tables = make_tables(raw)
        combined = pl.DataFrame(
            [
                (number, one.name)
                for number, program in raw.programs.items()
                for one in program.instructions.values()
                if one.opcode.removesuffix("-start") in KINDS and len(one.operands) > 1
            ],
            schema={"program_id": pl.Int64, "instruction": pl.String},
            orient="row",
        )
        steady = keep_steady_state(tables, tables.ops)
        exposed = steady.with_columns(duration_ns=pl.col("duration_ns") - pl.col("hidden_ns").fill_null(0))
        for what, ops in (("all time", steady), ("exposed time", exposed)):
            chosen = Tables(**{**{name: getattr(tables, name) for name in tables.__slots__}, "ops": ops})
            shares = apportion_time(chosen, by=())
            by_how = dict(shares.group_by("how").agg(pl.col("duration_ns").sum()).iter_rows())
            total = sum(by_how.values())
            direct = sum(by_how.get(how, 0) for how in DIRECT_HOWS)
            of_operands = shares.filter(how="operand").join(combined, on=["program_id", "instruction"], how="semi")
            counted = direct + int(of_operands["duration_ns"].sum())
            name = f"{path.stem}, {what}"
            rows.append(Row(f"{name}: direct", 100 * direct / total, better="higher", unit="%"))
            rows.append(
                Row(
                    f"{name}: {COUNTED}",
                    100 * counted / total,
                    goal=98.3 if what == "exposed time" else None,
                    better="higher",
                    unit="%",
                )
            )
            explained = 1 - by_how.get("none", 0) / total
            rows.append(Row(f"{name}: direct and inferred", 100 * explained, goal=99.99, better="higher", unit="%"))
    return rows
