"""How much of the device time is mapped to a Python line, on real programs?

Captures every workload of models/ (and one on eight devices, one with its layers scanned) and two toys (a scan over
layers, rematerialisation inside it) on the CPU, and one program with tracebacks off, whose answer must be 0 %.
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
from tests.bench.table import Row

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
OFF = "JAX_TRACEBACK_IN_LOCATIONS_LIMIT"
SCANNED = "compute.scan_layers=true"
SHARDS = "dp2.fsdp2.tp2"
# XLA combines the all-reduces of shards, and the combined one keeps the stack of one of its lines
INFERRED = {SCANNED, SHARDS}
WORKLOADS: dict[str, tuple[str, ...]] = {
    **{preset: (preset,) for preset in TINY},
    "gpt_tiny dp2.fsdp2.tp2": ("gpt_tiny", "--mesh", SHARDS),
    "gpt_tiny scanned": ("gpt_tiny", "--set", SCANNED),
}


def list_goals() -> list[str]:
    captures = [*(name for name in WORKLOADS), *(f"toy {name}" for name in TOYS)]
    explained = [f"{name}: {what}" for name in captures for what in ("direct and inferred", "user's own code")]
    direct = [f"{name}: direct" for name, chosen in WORKLOADS.items() if INFERRED.isdisjoint(chosen)]
    return [*explained, *direct, f"{OFF}=0: explained"]


def measure() -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name, chosen in WORKLOADS.items():
            out = place / name.replace(" ", "_")
            train = ["nightjar-models", "train", *chosen, "--steps", "6", "--out", str(out / "train")]
            profile = capture(out, ["--steps", "3:5", "--user-code", "nightjar_models"], train)
            rows += shares(name, profile, direct_goal=DIRECT if INFERRED.isdisjoint(chosen) else None)
        for name, text in TOYS.items():
            out = place / name.replace(" ", "_")
            out.mkdir()
            (out / "toy.py").write_text(text)
            profile = capture(out, ["--steps", "2:5"], [sys.executable, str(out / "toy.py")])
            rows += shares(f"toy {name}", profile, direct_goal=None)
        profile = capture(
            place / "off", ["--steps", "2:5"], [sys.executable, str(place / "scan" / "toy.py")], {OFF: "0"}
        )
        explained = profile["direct_fraction"] + profile["inferred_fraction"]
        return [*rows, Row(f"{OFF}=0: explained", 100 * explained, goal=0.0, unit="%")]


def capture(
    out: Path, options: list[str], command: list[str], variables: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The profile of a program; 4 is an answer too: nothing could be attributed."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **(variables or {})}
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
