"""Good nights of two cells and a capture, and what can go wrong with a series in a night."""

import json
import shutil
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from nightjar_ci.formats.night_folder import read_night, write_night
from nightjar_ci.formats.run_record import RunRecord
from tests.ci.nights import CELL, leave_capture, make_night, outcome, program_facts, record

OTHER, PROFILE = "vit-train-cpu-f32-dp1", "gpt-profile-cpu-f32-dp1"
NIGHTS = 20
IDS = [f"{date(2026, 11, 1) + timedelta(day)}T0300-0000" for day in range(40)]
TONIGHT = IDS[NIGHTS]
Result = dict[str, Any]
Results = dict[str, Result]  # of each train job by its id
Edit = Callable[[Results], object]


def sample(name: str, unit: str, *values: float, better: str = "lower") -> Result:
    return {"name": name, "unit": unit, "better": better, "values": list(values), "warmup": 0}


def results_of(day: int) -> Results:
    """A cell with three seeds and one with one, whose values vary from night to night as those of a machine do."""
    rng = np.random.default_rng(day)
    found = {}
    for job in (f"{CELL}-s0", f"{CELL}-s1", f"{CELL}-s2", f"{OTHER}-s0"):
        seconds = 0.05 * np.exp(rng.normal(0, 0.004, 6))
        made = record(int(job[-1]), job=job, values=[3.0, 2.5, 2.0 + rng.normal(0, 0.01)], step_times=seconds.tolist())
        result = json.loads(made.model_dump_json(by_alias=True))
        result["samples"] += [
            sample("bandwidth", "bytes/s", *rng.normal(2e9, 1e7, 5).tolist(), better="higher"),
            sample("compile_time", "s", float(rng.normal(12.0, 0.1))),
            sample("errors", "count", 0.0),
            sample("ratio", "", float(rng.normal(0.5, 0.01))),
        ]
        if job == f"{OTHER}-s0":  # a sample may have the name of a curve
            result["samples"].append(sample("accuracy", "fraction", 0.9, better="higher"))
        result["curves"].append(
            {"name": "accuracy", "unit": "fraction", "better": "higher", "steps": [0, 1, 2], "values": [0.1, 0.5, 0.9]}
        )
        result["facts"].append(program_facts(program="eval_step"))
        found[job] = result
    return found


def leave_night(folder: Path, day: int, results: Results, **changes: Any) -> Path:
    night = IDS[day]
    shutil.rmtree(folder / night, ignore_errors=True)
    runs = [(outcome(job), RunRecord.model_validate(one)) for job, one in results.items()]
    profile = outcome(f"{PROFILE}-s0", kind="profile")
    here = make_night(folder / night, [*runs, (profile, None)], night)
    leave_capture(here, profile.job)
    write_night(here, read_night(here).model_copy(update=changes))
    return here


def samples(results: Results, name: str, cell: str = CELL) -> list[Result]:
    jobs = [one for job, one in results.items() if job.rpartition("-s")[0] == cell]
    return [found for one in jobs for found in one["samples"] if found["name"] == name]


def drop(name: str, cell: str = CELL) -> Edit:
    def edit(results: Results) -> None:
        for job, one in results.items():
            if job.rpartition("-s")[0] == cell:
                for part in ("samples", "curves"):
                    one[part] = [found for found in one[part] if found["name"] != name]
                one["facts"] = [found for found in one["facts"] if found["program"] != name]

    return edit


def rename(name: str, new: str) -> Edit:
    return lambda results: [one.update(name=new) for one in samples(results, name)]


def put(name: str, *values: float, seeds: slice = slice(None)) -> Edit:
    """Values instead of those of a sample, in the results of some seeds."""
    return lambda results: [one.update(values=list(values), warmup=0) for one in samples(results, name)[seeds]]


def change_unit(name: str, unit: str, factor: float = 1.0, seeds: slice = slice(None), **changes: str) -> Edit:
    def edit(results: Results) -> None:
        for one in samples(results, name)[seeds]:
            one.update(unit=unit, values=[factor * value for value in one["values"]], **changes)

    return edit


def break_curve(name: str, *values: float) -> Edit:
    def edit(results: Results) -> None:
        for one in results.values():
            for curve in one["curves"]:
                if curve["name"] == name:
                    curve["values"] = list(values)

    return edit


def remove_jobs(cell: str) -> Edit:
    def edit(results: Results) -> None:
        for job in [job for job in results if job.rpartition("-s")[0] == cell]:
            del results[job]

    return edit


def upgrade_without(program: str) -> Edit:

    def edit(results: Results) -> None:
        drop(program)(results)
        for one in results.values():
            one["environment"]["packages"]["jaxlib"] = "0.11.0"

    return edit
