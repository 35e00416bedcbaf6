"""The programs at the size of a GPU: all in one process and one capture, since starting there takes seconds.

The clock goes first, without a profiler: in turns each part alone and both together, three runs queued behind each
other, so that the time to launch one is hidden. Then a step of the capture runs each of them three times, too: what a
GPU does without a pause for longer it does at a lower clock.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from tests.bench.truth.measure import PART, Shares
from tests.bench.truth.programs import PROGRAMS, Program

PARTS = ("first", "second")
TURNS = 5
SIDE, ROWS = 14, 32  # how many times larger a side of a square and the rows of another matrix are than on two cores
MAIN = """\
import importlib
import json
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
import jax
import jax.numpy as jnp

def normal(*shape):
    *outer, rows, columns = shape
    if rows == columns:
        shape = *outer, {side} * rows, {side} * columns
    else:
        shape = {rows} * shape[0], *shape[1:]
    return jax.random.normal(jax.random.key(0), shape)

MAKERS = {{
{makers}
}}
seed = jax.device_put(jnp.float32(0))

def prepare(name):
    makers = [jax.jit(maker) for maker in MAKERS[name]]
    first, second = (importlib.import_module(f"{{name}}_{{part}}") for part in ("first", "second"))
    def together(a, b, seed):
        return second.part(b, first.part(a, seed) * 0)
    def alone(part):
        return lambda x, seed: part(x, seed)
    a, b = (jax.eval_shape(maker) for maker in makers)
    runs = {{"first": (alone(first.part), a), "second": (alone(second.part), b), "together": (together, a, b)}}
    compiled = {{}}
    for run, (function, *arguments) in runs.items():
        function.__name__ = f"{{name}}_{{run}}"
        compiled[run] = jax.jit(function).lower(*arguments, seed).compile()
    return [maker.lower().compile() for maker in makers], compiled

def each(prepared, name):
    makers, compiled = prepared[name]
    a, b = (maker() for maker in makers)
    for run, arguments in (("first", (a, seed)), ("second", (b, seed)), ("together", (a, b, seed))):
        yield run, compiled[run], arguments

def queue(run, arguments, count):
    begin = time.perf_counter()
    results = [run(*arguments) for _ in range(count)]
    jax.block_until_ready(results)
    return (time.perf_counter() - begin) / count

with ThreadPoolExecutor(16) as pool:
    prepared = dict(zip(MAKERS, pool.map(prepare, MAKERS)))
times = {{name: {{run: [] for run in ("first", "second", "together")}} for name in MAKERS}}
for name in MAKERS:
    runs = {{run: (compiled, arguments) for run, compiled, arguments in each(prepared, name)}}
    for turn in range({turns} + 1):
        for run, (compiled, arguments) in runs.items():
            times[name][run] += [queue(compiled, arguments, 3)][turn == 0:]  # the first turn warms up
    del runs
times = {{name: {{run: statistics.median(found) for run, found in of.items()}} for name, of in times.items()}}
with open(sys.argv[1], "w") as file:
    json.dump(times, file)
with jax.profiler.StepTraceAnnotation("step", step_num=0):
    for name in MAKERS:
        for run, compiled, arguments in each(prepared, name):
            queue(compiled, arguments, 3)
"""


def record(programs: Sequence[Program], folder: Path) -> None:
    """Writes the programs to an empty folder and captures them there; `times.json` holds what the clock says."""
    makers = []
    for program in programs:
        name = label_program(program)
        for which, part in zip(PARTS, (program.first, program.second), strict=True):
            (folder / f"{name}_{which}.py").write_text(PART.format(text=part.text))
        makers.append(f"    {name!r}: (lambda: {program.first.x}, lambda: {program.second.x}),")
    (folder / "main.py").write_text(MAIN.format(turns=TURNS, side=SIDE, rows=ROWS, makers="\n".join(makers)))
    command = [sys.executable, "-m", "nightjar_profiling", "capture", "--backend", "jax", "--steps", "0:0"]
    command += ["--out", str(folder / "capture"), "--", sys.executable, str(folder / "main.py")]
    done = subprocess.run([*command, str(folder / "times.json")], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"capture ended with {done.returncode}:\n{done.stderr[-2000:]}")


def label_program(program: Program) -> str:
    """What the files and functions of a program are named after: its number among all."""
    return f"p{PROGRAMS.index(program):02}"


def judge(programs: Sequence[Program], folder: Path) -> dict[str, Shares]:
    from nightjar_profiling import load
    from nightjar_profiling.analyses.outlived import find_outlived
    from nightjar_profiling.analyses.stacks import read_stacks, user_line
    from nightjar_profiling.attribution.apportion import apportion_time
    from nightjar_profiling.capture_folder.usercode import user_code_test
    from nightjar_profiling.readers.xplane.xplane import read_raw

    capture = load(folder / "capture")
    tables = capture.read()
    named = tables.programs.select("program_id", program="name")
    stack_of = read_stacks(tables, user_code_test(()))
    spent = apportion_time(tables, by=("execution",)).filter(pl.col("frame_id").is_not_null()).join(named, "program_id")
    lines = spent.select("program_id", "frame_id").unique().rows()
    part_of = pl.DataFrame(
        [(*key, Path(user_line(stack_of(key)).file).stem) for key in lines],
        schema={"program_id": spent.schema["program_id"], "frame_id": spent.schema["frame_id"], "part": pl.String},
        orient="row",
    )
    by_part = spent.join(part_of, ["program_id", "frame_id"])
    outlived = find_outlived(tables.ops, read_raw(folder / "capture" / "raw" / "rank0000.xplane.pb").programs)
    outlived = outlived.join(named, "program_id")
    busy = tables.ops.group_by("program_id", "execution").agg(
        op_ns=pl.col("duration_ns").sum(),
        streams=pl.col("stream").n_unique(),  # kernels on several streams run side by side
        elapsed_ns=(pl.col("start_ns") + pl.col("duration_ns")).max() - pl.col("start_ns").min(),
    )
    busy = busy.join(named, "program_id")
    times = json.loads((folder / "times.json").read_text())
    shares = {}
    for program in programs:
        name = label_program(program)
        first, second = (pl.col("duration_ns").filter(pl.col("part") == f"{name}_{one}").sum() for one in PARTS)
        ours = (
            by_part.filter(program=f"jit_{name}_together")
            .group_by("execution")
            .agg(ours=first / (first + second))
            .select(pl.col("ours").median())
        ).item()
        alone = times[name]["first"] + times[name]["second"]
        runs = busy.filter(program=f"jit_{name}_together")
        shares[program.name] = Shares(
            truth=100 * times[name]["first"] / alone,
            ours=100 * (ours or 0.0),
            outlived=outlived.filter(pl.col("program").str.starts_with(f"jit_{name}_")).height,
            overbusy=runs.filter(pl.col("op_ns") > pl.col("elapsed_ns") * pl.col("streams")).height,
        )
    return shares
