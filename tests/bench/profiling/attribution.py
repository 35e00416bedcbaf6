"""How much of the device time is mapped to a Python line, on real programs?

Captures every workload of models/ on the CPU; one of them on eight devices, too, with its layers scanned, and with
rematerialisation inside the scan.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nightjar_models.presets import PRESETS
from tests.bench.table import Row

DIRECT, EXPLAINED, USER = 0.97, 0.999, 0.90  # goals: shares of the device time
TINY = tuple(preset for preset in PRESETS if preset.endswith("_tiny"))
SCANNED = "compute.scan_layers=true"
REMAT = "compute.remat=full"
SHARDS = "dp2.fsdp2.tp2"
# XLA combines the all-reduces of shards, and the combined one keeps the stack of one of its lines
INFERRED = {SCANNED, SHARDS}
WORKLOADS: dict[str, tuple[str, ...]] = {
    **{preset: (preset,) for preset in TINY},
    "gpt_tiny dp2.fsdp2.tp2": ("gpt_tiny", "--mesh", SHARDS),
    "gpt_tiny scanned": ("gpt_tiny", "--set", SCANNED),
    "gpt_tiny remat and scanned": ("gpt_tiny", "--set", SCANNED, "--set", REMAT),
}


def list_goals() -> list[str]:
    explained = [f"{name}: {what}" for name in WORKLOADS for what in ("direct and inferred", "user's own code")]
    direct = [f"{name}: direct" for name, chosen in WORKLOADS.items() if INFERRED.isdisjoint(chosen)]
    return [*explained, *direct]


def measure() -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, chosen in WORKLOADS.items():
            profile = capture(Path(folder) / name.replace(" ", "_"), chosen)
            rows += shares(name, profile, direct_goal=DIRECT if INFERRED.isdisjoint(chosen) else None)
    return rows


def capture(out: Path, chosen: Sequence[str]) -> dict[str, Any]:
    """The profile of a workload; 4 is an answer too: nothing could be attributed."""
    train = ["nightjar-models", "train", *chosen, "--steps", "6", "--out", str(out / "train")]
    options = ["--steps", "3:5", "--user-code", "nightjar_models", "--out", str(out / "capture")]
    profiler = [sys.executable, "-m", "nightjar_profiling", "capture", *options, "--", *train]
    done = subprocess.run(
        profiler, env={**os.environ, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 4):
        raise SystemExit(f"{' '.join(train)}: capture ended with {done.returncode}:\n{done.stderr[-2000:]}")
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
