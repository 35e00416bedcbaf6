"""Small made results and nights, for tests of judges, gate and report."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nightjar_ci.baselines.baseline import ConvergenceBaseline, make_convergence
from nightjar_ci.formats.documents import write_json
from nightjar_ci.formats.night_folder import Night, job_folder, write_night
from nightjar_ci.formats.outcome import Outcome, State
from nightjar_ci.formats.run_record import RunRecord

CELL = "gpt-train-cpu-f32-dp1"
STEPS = 120

ENVIRONMENT: dict[str, Any] = {
    "python": "3.11.7",
    "platform": "linux-x86_64",
    "cpu": {
        "model": "AMD EPYC",
        "cores": 2,
        "memory_bytes": 25769803776,
        "architecture": "AuthenticAMD family 25 model 1",
        "instructions": ["avx2", "fma"],
    },
    "backend": "cpu",
    "devices": ["cpu"],
    "packages": {"jax": "0.10.2", "jaxlib": "0.10.2"},
    "flags": {},
    "git": None,
    "image": None,
}


def tally(count: int, size: int | None = None) -> dict[str, int]:
    return {"count": count, "bytes": 1024 * count if size is None else size}


def program_facts(**changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "program": "train_step",
        "opcodes": {"dot": tally(24), "fusion": tally(76), "add": tally(30)},
        "fusions": {"kLoop": tally(76)},
        "custom_calls": {},
        "collectives": {},
        "flops": 1.5e9,
        "memory": {
            "argument_bytes": 3000,
            "output_bytes": 2000,
            "alias_bytes": 1000,
            "temp_bytes": 100_000,
            "generated_code_bytes": 5000,
            "peak_bytes": None,
        },
    }
    return facts | changes


def losses(
    seed: int, steps: int = STEPS, *, shift: float = 0.0, noise: float = 0.02, spread: float = 0.01
) -> list[float]:
    """A falling loss with a seed effect and autocorrelated batch noise, the same for the same seed."""
    rng = np.random.default_rng([7, seed])
    wave = np.zeros(steps)
    innovations = rng.normal(0, noise * (1 - 0.6**2) ** 0.5, steps)
    for step in range(1, steps):
        wave[step] = 0.6 * wave[step - 1] + innovations[step]
    trend = np.log(2.0 + 3.5 * np.exp(-np.arange(steps) / (steps / 6)))
    return [float(value) for value in np.exp(trend + wave + rng.normal(0, spread) + shift)]


def record(
    seed: int = 0,
    *,
    values: Sequence[float] | None = None,
    steps: Sequence[int] | None = None,
    step_times: Sequence[float] = (0.9, 0.05, 0.051, 0.049),
    facts: Sequence[Mapping[str, Any]] | None = None,
    status: str = "completed",
    jaxlib: str = "0.10.2",
    device: str = "cpu",
    config: Mapping[str, Any] | None = None,
    job: str | None = None,
    name: str = "loss",
    better: str = "lower",
) -> RunRecord:
    values = losses(seed) if values is None else values
    packages = {"jax": jaxlib, "jaxlib": jaxlib}
    return RunRecord.model_validate(
        {
            "schema": "nightjar.run/1",
            "job": f"{CELL}-s{seed}" if job is None else job,
            "workload": "gpt",
            "status": status,
            "seed": seed,
            "started_at": "2026-11-21T03:00:00+00:00",
            "duration_s": 12.5,
            "config": {"learning_rate": 0.003, "data_digest": "d1"} | dict(config or {}),
            "environment": ENVIRONMENT | {"packages": packages, "devices": [device]},
            "curves": [
                {
                    "name": name,
                    "unit": "nats/token",
                    "better": better,
                    "steps": list(range(len(values)) if steps is None else steps),
                    "values": list(values),
                }
            ],
            "samples": [
                {"name": "step_time", "unit": "s", "better": "lower", "values": list(step_times), "warmup": 1},
                {"name": "peak_memory", "unit": "bytes", "better": "lower", "values": [3.2e8], "warmup": 0},
            ],
            "facts": [program_facts()] if facts is None else list(facts),
        }
    )


def baseline(seeds: int = 10, **changes: Any) -> ConvergenceBaseline:
    return make_convergence(CELL, ("train", "--out", "{out}"), [record(seed, **changes) for seed in range(seeds)])


def outcome(job: str = f"{CELL}-s0", **changes: Any) -> Outcome:
    cell, _, seed = job.rpartition("-s")
    values: dict[str, Any] = {
        "job": job,
        "cell": cell or job,
        "replicate": int(seed) if cell and seed.isdigit() else None,
        "kind": "train",
        "command": ("train", "--out", "{out}"),
        "environment": "current",
        "executor": "local",
        "state": "completed",
        "exit_code": 0,
        "signal": None,
        "started_at": "2026-11-21T03:00:00+00:00",
        "duration_s": 12.5,
        "peak_rss_bytes": 320_000_000,
        "message": None,
    }
    return Outcome(**(values | changes))


def failed(job: str, state: State = "failed", message: str = "it broke", **changes: Any) -> Outcome:
    return outcome(job, state=state, exit_code=1, message=message, **changes)


def leave_result(folder: Path, result: RunRecord) -> None:
    write_json(folder / "result.json", result)


def make_night(
    folder: Path, runs: Sequence[tuple[Outcome, RunRecord | None]], night: str = "2026-11-21T0300-1a2b"
) -> Path:
    jobs = tuple(one for one, _ in runs)
    write_night(
        folder,
        Night.model_validate(
            {
                "schema": "nightjar.night/1",
                "id": night,
                "matrix": "nightly-cpu",
                "started_at": f"{night[:10]}T03:00:00+00:00",
                "finished_at": f"{night[:10]}T03:05:00+00:00",
                "git": None,
                "jobs": [one.model_dump() for one in jobs],
            }
        ),
    )
    for one, result in runs:
        if result is not None:
            leave_result(job_folder(folder, one.job), result)
    return folder


def leave_pair(folder: Path, cell: str, number: int, times: tuple[float, float]) -> None:
    """The two runs of a pair: median step time of the candidate and of the reference."""
    for side, seconds in zip("ab", times, strict=True):
        here = folder / "ab" / cell / f"{number:02d}-{side}"
        leave_result(here, record(step_times=(1.0, seconds, seconds)))
        environment = "current" if side == "a" else "uv:jax==0.10.1"
        write_json(here / "outcome.json", outcome(f"{cell}-{number}-{side}", cell=cell, environment=environment))


def leave_capture(folder: Path, job: str, **changes: Any) -> None:
    capture = job_folder(folder, job) / "capture"
    capture.mkdir(parents=True)
    profile: dict[str, Any] = {
        "schema": "nightjar.profile/1",
        "backend": "jax",
        "command": ["train"],
        "steps": [10, 12],
        "device_time_ns": 150_000_000,
        "direct_fraction": 0.9,
        "inferred_fraction": 0.06,
        "unattributed_fraction": 0.04,
        "user_fraction": 0.95,
        "library_fraction": 0.01,
        "hot_lines": [
            {
                "file": "/src/gpt.py",
                "line": 40 + index,
                "function": "attend",
                "source": f"    scores = q @ k  # line {index}",
                "self_ns": 40_000_000 // (index + 1),
                "fraction": 0.27 / (index + 1),
            }
            for index in range(12)
        ],
        "categories": {"dot": 90_000_000},
        "flamegraph": "flamegraph.json",
        "warnings": [],
    }
    (capture / "profile.json").write_text(json.dumps(profile | changes))
    figure = {
        "type": "icicle",
        "ids": ["train", "attend", "mlp"],
        "labels": ["train", "attend", "mlp"],
        "parents": ["", "train", "train"],
        "values": [150, 100, 50],
        "branchvalues": "total",
    }
    (capture / "flamegraph.json").write_text(json.dumps({"data": [figure], "layout": {}}))
