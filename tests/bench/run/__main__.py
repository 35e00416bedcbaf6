"""How much does a run add to its jobs? `nightjar-ci run --workers 2` with a thousand jobs of one second.

The ideal is a machine that starts the next job at once: jobs x seconds / workers. `--work burn` (the default) keeps a
processor busy, so that whatever nightjar-ci itself computes delays the jobs; `--work sleep` shows its waiting alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nightjar_ci.formats.night_folder import read_night
from tests.bench.table import Row, finish, measure_part, print_rows
from tests.ci.jobs import RESULT

GOAL = 1.15
GOALS = ("wall time / ideal", "jobs completed")
# A second of the clock, in Python's own loop or asleep; then the result is there.
BURN = "end=$(($(date +%s%N) + {ns})); while [ $(date +%s%N) -lt $end ]; do :; done"
SLEEP = "sleep {seconds}"


def main() -> int:
    """Runs the jobs, prints a table and returns the exit code."""
    parser = argparse.ArgumentParser(prog="nox -s bench_run --", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="number of jobs (1000)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each job (1)")
    parser.add_argument("--workers", type=int, default=2, help="jobs at the same time (2)")
    parser.add_argument("--work", choices=("burn", "sleep"), default="burn", help="what a job does meanwhile")
    given = parser.parse_args()
    rows = measure_part(GOALS, lambda: measure(given.jobs, given.seconds, given.workers, given.work))
    print_rows(f"{given.jobs} jobs of {given.seconds:g} s, {given.workers} at a time, {given.work}", rows)
    return finish("bench_run", rows)


def measure(jobs: int, seconds: float, workers: int, work: str) -> list[Row]:
    """Rows of the wall time against the ideal, and of what each job costs."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        text = BURN.format(ns=int(seconds * 1e9)) if work == "burn" else SLEEP.format(seconds=seconds)
        script = f'{text}; printf %s "$1" > $0/result.json'  # a sandboxed job sees no file of ours
        command = ["sh", "-c", escape(script), "{out}", escape(RESULT)]
        matrix = folder / "matrix.toml"
        matrix.write_text(
            'schema = "nightjar.matrix/1"\nname = "bench"\n[[job]]\nname = "job-{n}"\n'
            f"command = {json.dumps(command)}\naxes = {{ n = {list(range(jobs))} }}\n"
        )
        start = time.monotonic()
        ran = subprocess.run(
            [
                *(sys.executable, "-m", "nightjar_ci", "run", str(matrix), "--out", str(folder / "night")),
                *("--workers", str(workers)),
            ],
            env={**os.environ, "NIGHTJAR_STATE_DIR": str(folder / "state")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        wall_s = time.monotonic() - start
        if ran.returncode:
            raise SystemExit(f"error: the run ended with {ran.returncode}:\n{ran.stderr[-2000:]}")
        night = read_night(folder / "night")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    ideal_s = jobs * seconds / workers
    rows = [
        Row(name="wall time / ideal", ours=wall_s / ideal_s, goal=GOAL),
        Row(name="wall time", ours=wall_s, unit="s"),
        Row(name="jobs completed", ours=sum(one.completed for one in night.jobs), goal=jobs, better="higher"),
    ]
    if work == "sleep":
        spent = (used.ru_utime + used.ru_stime) / jobs
        rows.append(Row(name="processor time for each job, all in", ours=spent * 1e3, unit="ms"))
    return rows


def escape(text: str) -> str:
    """A text without placeholders for a matrix."""
    return text.replace("{", "{{").replace("}", "}}")


if __name__ == "__main__":
    sys.exit(main())
