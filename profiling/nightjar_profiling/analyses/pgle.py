"""Measured instruction latencies for XLA's latency-hiding scheduler.

In: steady-state ops. Out: one text protobuf of ProfiledInstructionsProto per program, for
`--xla_gpu_pgle_profile_file_or_directory_path`: the scheduler then uses measured latencies to place collectives, not
modelled ones. Computation counts with its shortest duration, which is the least disturbed; communication with its
longest, so that enough work overlaps it. The name is the instruction's name before scheduling. If the module does not
record that, it is the instruction's current name, which is the same unless a later pass renamed it.

Source: NVIDIA/JAX-Toolbox:.github/container/nsys_jax/nsys_jax/analyses/pgle_costs.py (which writes empty names if there
is no scheduling name); openxla/xla:xla/service/profile_guided_latency_estimator.cc
"""

from __future__ import annotations

import polars as pl

from nightjar_profiling.analyses.communication.overlap import mark_communication
from nightjar_profiling.analyses.warmup import keep_steady_state
from nightjar_profiling.capture_folder.tables import Tables

RUN = ["rank", "device", "program_id", "execution", "instruction"]
INSTRUCTION = ["program_id", "instruction"]


def measure_latencies(tables: Tables) -> pl.DataFrame:
    """The steady-state latency of every instruction that ran.

    Returns:
        Columns: `program_id`, `instruction`, `name` (for the scheduler), `cost_us`; in the order of their first run.
    """
    ops = tables.ops.with_columns(mark_communication(tables.ops, tables.collectives)).with_row_index("row")
    ops = keep_steady_state(tables, ops.filter(pl.col("instruction").is_not_null()))
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
