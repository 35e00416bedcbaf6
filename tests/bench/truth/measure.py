"""One program captured: each part's share by the profiler, and by a clock that the program reads itself.

The program is written to a folder, each part in a file of its own, and run under `nightjar-profiling capture`. In every
step the parts run alone, then together, then together with callbacks that read the clock. What a callback takes is
measured in a program of two with nothing between, and taken off. A share is the median over the third of the steps that
took the least time by the clock: the same steps for the clock and the profiler.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from tests.bench.truth.programs import Program

STEPS = 30
WARM_UP = 2
PART = """\
import functools
import jax
import jax.numpy as jnp

def part(x, seed):
    return {text}
"""
MAIN = """\
import json
import sys
import time
import jax
import jax.numpy as jnp
import first
import second

def normal(*shape):
    return jax.random.normal(jax.random.key(0), shape)

def place(x):
    if jax.device_count() == 1:
        return x
    mesh = jax.make_mesh((jax.device_count(),), ("d",))
    spec = jax.sharding.PartitionSpec(*(None,) * (x.ndim - 2), "d", None)
    return jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))

def together(a, b, seed):
    return second.part(b, first.part(a, seed) * 0)

def read_clock(value):
    stamps.append(time.perf_counter())
    return value

def stamp(value):
    return jax.pure_callback(read_clock, jax.ShapeDtypeStruct((), value.dtype), value)

def clocked(a, b, seed):
    return stamp(second.part(b, stamp(first.part(a, stamp(seed)) * 0)))

def nothing(seed):
    return stamp(stamp(seed))

a, b, seed = place({first}), place({second}), jnp.float32(0)
runs = {{
    "first": (jax.jit(first.part), (a, seed)),
    "second": (jax.jit(second.part), (b, seed)),
    "together": (jax.jit(together), (a, b, seed)),
    "nothing": (jax.jit(nothing), (seed,)),
    "clocked": (jax.jit(clocked), (a, b, seed)),
}}
INSIDE = {{"nothing": ["nothing_inside"], "clocked": ["first_inside", "second_inside"]}}
times = {{name: [] for name in (*runs, "nothing_inside", "first_inside", "second_inside")}}
for number in range({warm_up} + {steps}):
    with jax.profiler.StepTraceAnnotation("step", step_num=number):
        for name, (run, arguments) in runs.items():
            stamps = []
            begin = time.perf_counter()
            jax.block_until_ready(run(*arguments))
            times[name].append(time.perf_counter() - begin)
            for inside, begin, end in zip(INSIDE.get(name, ()), stamps, stamps[1:]):
                times[inside].append(end - begin)
with open(sys.argv[1], "w") as file:
    json.dump({{name: found[{warm_up}:] for name, found in times.items()}}, file)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The first part's share of the two, in percent, and what a capture must not hold.

    Attributes:
        truth: by a clock that is read inside the program, before, between and after the parts; on a GPU, where no clock
            is read inside, of the times of both parts alone.
        ours: of the busy time of both in the very executions in which that clock was read; on a GPU of the device time.
        outlived: ops of the capture that end after a reader of their result has begun.
        overbusy: runs whose device time is more than their elapsed time on all threads.
    """

    truth: float
    ours: float
    outlived: int
    overbusy: int


def measure(program: Program, folder: Path) -> Shares:
    for name, part in (("first", program.first), ("second", program.second)):
        (folder / f"{name}.py").write_text(PART.format(text=part.text))
    (folder / "main.py").write_text(
        MAIN.format(first=program.first.x, second=program.second.x, warm_up=WARM_UP, steps=STEPS)
    )
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={program.devices}"
    capture = ["capture", "--steps", f"{WARM_UP}:{WARM_UP + STEPS - 1}", "--out", str(folder / "capture")]
    command = [sys.executable, "-m", "nightjar_profiling", *capture, "--"]
    command += [sys.executable, str(folder / "main.py"), str(folder / "times.json")]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{program.name}: capture ended with {done.returncode}:\n{done.stderr[-2000:]}")
    times = pl.DataFrame(json.loads((folder / "times.json").read_text()))
    return read_shares(folder, times)


def read_shares(folder: Path, times: pl.DataFrame) -> Shares:
    from nightjar_profiling import load
    from nightjar_profiling.analyses.outlived import find_outlived
    from nightjar_profiling.analyses.side_by_side import divide_moments
    from nightjar_profiling.analyses.stacks import read_stacks, user_line
    from nightjar_profiling.attribution.apportion import apportion_time
    from nightjar_profiling.capture_folder.usercode import user_code_test
    from nightjar_profiling.readers.xplane.xplane import read_raw

    capture = load(folder / "capture")
    tables = capture.read()
    tables = replace(tables, ops=divide_moments(tables.ops))
    stack_of = read_stacks(tables, user_code_test(()))
    ids = dict(tables.programs.select("name", "program_id").rows())
    clocked, program_id = ids["jit_clocked"], ids["jit_together"]
    spent = apportion_time(tables, by=("execution",), time="busy_ns")
    lines = spent.filter(pl.col("frame_id").is_not_null(), program_id=clocked)
    part_of = {
        frame: Path(user_line(stack_of((clocked, frame))).file).stem for frame in lines["frame_id"].unique().to_list()
    }
    by_part = lines.with_columns(part=pl.col("frame_id").replace_strict(part_of, return_dtype=pl.String))
    first, second = (pl.col("duration_ns").filter(pl.col("part") == name).sum() for name in ("first", "second"))
    shares = by_part.group_by("execution").agg(ours=first / (first + second)).sort("execution")["ours"]
    nothing = pl.col("nothing_inside").median()  # what a callback costs
    inside, beside = pl.col("first_inside") - nothing, pl.col("second_inside") - nothing
    steps = times.with_columns(ours=shares, truth=inside / (inside + beside))
    quiet = steps.sort(pl.sum_horizontal("first", "second", "together", "clocked")).head(STEPS // 3)
    truth = quiet.select(pl.col("truth").median()).item()
    busy = tables.ops.filter(program_id=program_id).group_by("execution").agg(pl.col("duration_ns").sum())
    elapsed = (
        tables.executions.filter(program_id=program_id)
        .group_by("execution")
        .agg(devices=pl.len(), elapsed_ns=(pl.col("start_ns") + pl.col("duration_ns")).max() - pl.col("start_ns").min())
    )
    runs = busy.join(elapsed, on="execution")
    threads = (os.cpu_count() or 1) + pl.col("devices")  # those of the pool, and one for each device that calls
    return Shares(
        truth=100 * truth,
        ours=100 * (truth + quiet.select(pl.col("ours") - pl.col("truth")).median().item()),
        outlived=find_outlived(tables.ops, read_raw(folder / "capture" / "raw" / "rank0000.xplane.pb").programs).height,
        overbusy=runs.filter(pl.col("duration_ns") > pl.col("elapsed_ns") * threads).height,
    )
