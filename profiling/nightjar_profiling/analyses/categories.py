"""Device time by category of work.

In: ops and instructions. Out: device time by category, in words that need no knowledge of HLO opcodes. An op has the
category of its instruction; communication takes precedence, whatever instruction wraps it. The kind of a fusion does
not describe its computation: a fusion counts as a matrix product, a convolution or a reduction if it mostly holds one
(`instructions.main_work`). An op without an instruction has only a kernel name: it counts as a matrix product if the
name says so, otherwise it has no category. A library call is classified by the name of its kernel.
"""

from __future__ import annotations

import polars as pl

from nightjar_profiling.analyses.communication.overlap import mark_communication
from nightjar_profiling.capture_folder.tables import Tables

PRODUCTS = r"gemm|matmul|\$lt\$|cudnn.*conv|onednn"
PRODUCT_KERNELS = r"(?i)gemm|cutlass|cublas|matmul|^nvjet|^aten::(?:add|b|badd|_)?(?:mm|mv|bmm)$"
CONVOLUTION_KERNELS = r"(?i)^aten::.*conv|implicit_gemm|fprop_optimized|[dw]grad[2_]|convolve|conv2d|cudnn::cnn"
MOVES = [
    "copy",
    "copy-start",
    "copy-done",
    "transpose",
    "bitcast-convert",
    "reshape",
    "broadcast",
    "concatenate",
    "pad",
]
INDEXED = ["gather", "scatter", "slice", "dynamic-slice", "dynamic-update-slice", "iota"]
LIBRARY = ["fft", "cholesky", "triangular-solve", "custom-call"]  # a library's kernels
CONTROL = ["while", "conditional", "call"]
GROUPS = {  # categories that share a colour in the timeline
    "matrix products": ("matrix product", "convolution"),
    "fusions": ("fusion",),
    "communication": ("communication",),
    "data movement": ("data movement", "memory copy", "indexing"),
    "other": (),
}


def categorise() -> pl.Expr:
    """The category of an op, from the columns that `summarise_work` joins."""
    opcode = pl.col("opcode")
    bare = pl.coalesce("main_work", opcode.str.split(":").list.first())
    return (
        pl.when("communicates").then(pl.lit("communication"))
        .when(pl.col("kind").is_in(["memcpy", "memset"])).then(pl.lit("memory copy"))
        .when(opcode.is_null() & pl.col("kernel").str.contains(CONVOLUTION_KERNELS)).then(pl.lit("convolution"))
        .when(opcode.is_null() & pl.col("kernel").str.contains(PRODUCT_KERNELS)).then(pl.lit("matrix product"))
        .when(opcode.is_null()).then(pl.lit("no instruction"))
        .when(bare == "convolution").then(pl.lit("convolution"))
        .when(bare == "dot").then(pl.lit("matrix product"))
        .when((bare == "custom-call") & pl.col("kernel").str.contains(CONVOLUTION_KERNELS)).then(pl.lit("convolution"))
        .when((bare == "custom-call") & pl.col("kernel").str.contains(PRODUCT_KERNELS)).then(pl.lit("matrix product"))
        .when((bare == "custom-call") & pl.col("instruction").str.contains(PRODUCTS)).then(pl.lit("matrix product"))
        .when(bare.is_in(LIBRARY)).then(pl.lit("custom call"))
        .when(bare == "sort").then(pl.lit("sort"))
        .when(bare == "fusion").then(pl.lit("fusion"))
        .when(bare.is_in(["reduce", "reduce-window"])).then(pl.lit("reduction"))
        .when(bare.is_in(MOVES)).then(pl.lit("data movement"))
        .when(bare.is_in(INDEXED)).then(pl.lit("indexing"))
        .when(bare.is_in(CONTROL)).then(pl.lit("control flow"))
        .otherwise(pl.lit("elementwise"))
    )  # fmt: skip


def summarise_work(tables: Tables) -> pl.DataFrame:
    """Device time by instruction, kernel and category.

    Returns:
        Columns: `program_id`, `instruction`, `kernel`, `category`, `count` (of ops), `device_ns`.
    """
    instructions = tables.instructions.select("program_id", "opcode", "main_work", instruction=pl.col("name")).unique(
        ["program_id", "instruction"]
    )
    key = ["program_id", "instruction", "kernel"]
    return (
        tables.ops.select(*key, "kind", "duration_ns", mark_communication(tables.ops, tables.collectives))
        .group_by(*key, "kind", "communicates")
        .agg(count=pl.len().cast(pl.Int64), device_ns=pl.col("duration_ns").sum())
        .join(instructions, on=key[:2], how="left")
        .with_columns(category=categorise())
        .group_by(*key, "category")
        .agg(pl.col("count").sum(), pl.col("device_ns").sum())
    )


def summarise_categories(tables: Tables) -> pl.DataFrame:
    """Device time by category, largest first.

    Returns:
        Columns: `category`, `count` (of ops), `device_ns`, `fraction`.
    """
    total = pl.col("device_ns").sum()
    return (
        summarise_work(tables)
        .group_by("category")
        .agg(pl.col("count").sum(), pl.col("device_ns").sum())
        .with_columns(fraction=pl.when(total > 0).then(pl.col("device_ns") / total))
        .sort("device_ns", "category", descending=[True, False])
    )
