"""How long does each instruction really take, in the form that XLA's scheduler reads?

In: steady-state ops. Out: per program a text protobuf of ProfiledInstructionsProto, for
`--xla_gpu_pgle_profile_file_or_directory_path`: the latency-hiding scheduler then moves collectives by measured
instead of modelled times. A computation counts with its shortest time, which is the least disturbed; a communication
with its longest, so that enough work is put over it. The name is the one that the instruction had before scheduling;
where the module does not record it, the instruction's own, which is the same unless a later pass renamed it.

Source: NVIDIA/JAX-Toolbox:.github/container/nsys_jax/nsys_jax/analyses/pgle_costs.py (which writes empty names where
there is no scheduling name); openxla/xla:xla/service/profile_guided_latency_estimator.cc
"""

from __future__ import annotations

import polars as pl

from nightjar_profiling.analyses.communication.overlap import mark_communication
from nightjar_profiling.analyses.warmup import keep_steady
from nightjar_profiling.capture_folder.tables import Tables

RUN = ["rank", "device", "program_id", "execution", "instruction"]
INSTRUCTION = ["program_id", "instruction"]


def measure_latencies(tables: Tables) -> pl.DataFrame:
    """The latency of every instruction that ran, in the steady state.

    Returns:
        Columns: `program_id`, `instruction`, `name` (for the scheduler), `cost_us`. In the order in which they first
        ran.
    """
    ops = tables.ops.with_columns(mark_communication(tables.ops, tables.collectives)).with_row_index("row")
    ops = keep_steady(tables, ops.filter(pl.col("instruction").is_not_null()))
    run = pl.coalesce("thunk", -1 - pl.col("row").cast(pl.Int64))
    ends = pl.col("start_ns") + pl.col("duration_ns")
    runs = ops.group_by([*RUN, run.alias("run")]).agg(
        pl.col("start_ns").min(),
        duration_ns=ends.max() - pl.col("start_ns").min(),
        communicates=pl.col("communicates").any(),
    )
    latency = (
        pl.when(pl.col("communicates").any()).then(pl.col("duration_ns").max()).otherwise(pl.col("duration_ns").min())
    )
    names = tables.instructions.select("program_id", "scheduling_name", instruction=pl.col("name"))
    return (
        runs.sort("start_ns", *INSTRUCTION)
        .group_by(INSTRUCTION, maintain_order=True)
        .agg(cost_us=latency / 1000)
        .join(names, on=INSTRUCTION, how="left", maintain_order="left")
        .select(*INSTRUCTION, name=pl.coalesce("scheduling_name", "instruction"), cost_us="cost_us")
    )


def render_pgle(latencies: pl.DataFrame) -> str:
    """The text protobuf of one program.

    >>> print(render_pgle(pl.DataFrame({"name": ["dot.1"], "cost_us": [12.34]})), end="")
    costs { name: "dot.1" cost_us: 12.3 }
    """
    rows = latencies.select("name", "cost_us").iter_rows()
    return "".join(f'costs {{ name: "{_escape(name)}" cost_us: {cost_us:.1f} }}\n' for name, cost_us in rows)


def _escape(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')
