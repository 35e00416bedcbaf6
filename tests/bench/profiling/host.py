"""Is the host's own time by line what the program's own clock says? A loop that computes, sleeps, and waits for JAX."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.table import Row

POINTS, TOTAL = 3.0, 2.0  # goals: of the share of each line; of the time of all, in percent
PROGRAM = """\
import json
import sys
import time
import jax
import jax.numpy as jnp

def spin(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass

def wait(run, x):
    run(x).block_until_ready()

def prepare(count):
    for _ in range(count):
        sum(number * number for number in range(4000))
        time.sleep(0.001)

run, x = jax.jit(lambda x: (x @ x).sum()), jnp.ones((1000, 1000))
wait(run, x)
parts = {"spin": lambda: spin(0.03), "wait": lambda: wait(run, x), "prepare": lambda: prepare(10)}
times = dict.fromkeys(parts, 0.0)
begin = time.perf_counter()
for number in range(20):
    with jax.profiler.StepTraceAnnotation("step", step_num=number):
        if number == 1:  # by now the trace runs
            begin, times = time.perf_counter(), dict.fromkeys(parts, 0.0)
        for name, part in parts.items():
            before = time.perf_counter()
            part()
            times[name] += time.perf_counter() - before
        total = time.perf_counter() - begin
with open(sys.argv[1], "w") as file:
    json.dump(times | {"total": total}, file)
"""
FUNCTIONS = {"spin": {"spin"}, "wait": {"wait"}, "prepare": {"prepare", "<genexpr>"}}


def list_goals() -> list[str]:
    """The names of this part's goals."""
    return ["host time: all lines, off by", *(f"host time of {part}: off" for part in FUNCTIONS)]


def measure() -> list[Row]:
    """Shares of each function of the loop."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "main.py").write_text(PROGRAM)
        command = [sys.executable, "-m", "nightjar_profiling", "capture", "--backend", "jax", "--steps", "1:19"]
        command += ["--out", str(folder / "capture"), "--", sys.executable, str(folder / "main.py")]
        subprocess.run([*command, str(folder / "times.json")], check=True, capture_output=True)
        times = json.loads((folder / "times.json").read_text())
        host = json.loads((folder / "capture" / "profile.json").read_text())["host"]
    all_ns = sum(line["host_ns"] for line in host["lines"])
    rows = [Row(name=list_goals()[0], ours=100 * abs(all_ns / 1e9 / times["total"] - 1), goal=TOTAL, unit="%")]
    for part in FUNCTIONS:
        functions = FUNCTIONS[part]
        ours = 100 * sum(line["host_ns"] for line in host["lines"] if line["function"] in functions) / all_ns
        clock = 100 * times[part] / times["total"]
        rows.append(Row(name=f"host time of {part}", ours=ours, unit="%", rival="clock", rival_value=clock))
        rows.append(Row(name=f"host time of {part}: off", ours=abs(ours - clock), goal=POINTS, unit="points"))
    return rows
