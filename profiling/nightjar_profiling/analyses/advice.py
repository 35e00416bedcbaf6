"""Avoidable costs of a program, each with the time that its removal would save.

In: the tables of a capture. Out: `Advice`, the largest saving first. Elapsed time runs from the devices' first op to
their last; a saving is a share of it. The cost of ops is scaled by how busy a device was: with two ops at a time, 10 ms
of one of them are 5 ms of elapsed time. Savings overlap, and are not to be added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import polars as pl

from nightjar_profiling.analyses.categories import summarise_work
from nightjar_profiling.analyses.communication.overlap import find_exposed
from nightjar_profiling.analyses.gaps import measure_busy
from nightjar_profiling.analyses.recompiled import explain_shapes, list_callers, plain
from nightjar_profiling.capture_folder.tables import Tables

KEY = ["program_id", "instruction"]
RUN = ["rank", "device", "program_id", "execution"]
WORTH_SAYING = 0.02  # of the elapsed time
DISPATCH_MS = 1.0  # median of the waits: dispatch takes 0.03 to 0.24, sometimes more if other processes hold the cores
FREE_NS_PER_BYTE = 0.1  # of what a run on a CPU allocates: munmap of 12.8 MB takes 1 to 3 ms
DISPATCH_SHARE = 0.1  # of the elapsed time, beyond which it is worth to run several steps in one program
CHAIN_LENGTH = 3  # programs of one small op, one after another
EAGER_OPS = 2  # at most, in a program that one operation of jax.numpy made
EAGER_WORK = ("elementwise", "fusion", "data movement", "reduction", "indexing")
MOVES = ("copy", "transpose")
MOVED = r"/(?:copy|transpose)$"  # the last operation of a fusion
BACKWARD = r"\btranspose\(.*/"  # a derivative: nobody wrote its transpositions
COMPUTATIONS = ("matrix product", "convolution", "reduction")  # whose last operation may be a transposition
CALLBACKS = r"(?:pure|io|debug)_callback$"
ACTIONS = {  # by kind; `recompile` names the function
    "donate": "Donate the arguments that the program hands back or overwrites: jax.jit(..., donate_argnums=...)",
    "layout": "Keep one layout: transpose once outside of the step, or contract over other axes",
    "callback": "Take callbacks out of the step, or call them every so many steps",
    "double": "Compute in float32: arrays that NumPy or jax_enable_x64 made are float64",
    "lookup": "Index the table instead of multiplying it by one-hot rows: table[ids]",
    "sort": "Use values and indices of jax.lax.top_k: of what is sorted, a small part is read",
    "remat": "Keep what is dear to compute again, such as products and attention: a policy for jax.checkpoint",
    "exposed": "Overlap communication with computation, or communicate less: other shardings, fewer, larger messages",
    "twice": "Take the value that the gradient computes anyway: jax.value_and_grad, with has_aux=True for more",
    "eager": "Put the operations into one function under jax.jit, so that XLA fuses them",
    "host": "Keep the devices fed: load data ahead, read losses a step later, or run several steps in one program",
}
OPS = {  # what the ops of a kind are
    "donate": "copies of arguments",
    "layout": "copies and transpositions",
    "callback": "callbacks of Python from the program",
    "double": "instructions in float64",
    "lookup": "instructions that make one-hot rows or multiply by them",
    "sort": "sorts",
}
SAME_LINES = 0.9  # of the time of a program: the lines that a gradient has too
SINGLE_OF_DOUBLE = 0.5  # of the time of a vector instruction, or of memory, at half the width


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A cost that a program need not have.

    Attributes:
        kind: one word for programs: `recompile`, or a key of ACTIONS.
        saving_ns: of elapsed time.
        saving_fraction: of elapsed time.
        program_id: of the instruction with most of the cost; None if there is none.
        instruction: by which the line is found; None if there is none.
    """

    kind: str
    evidence: str
    saving_ns: int
    action: str = ""
    saving_fraction: float = 0.0
    program_id: int | None = None
    instruction: str | None = None


def advise(tables: Tables, usage: Mapping[str, float] | None = None) -> list[Advice]:
    """Advice, the largest saving first; savings below WORTH_SAYING are left out; `usage` as in find_compiles."""
    busy = measure_busy(tables.ops)
    elapsed_ns = float(busy["span_ns"].mean() or 0)  # type: ignore[arg-type]
    if not elapsed_ns:
        return []
    scale = float(busy["busy_ns"].sum()) / max(tables.device_time_ns, 1) / busy.height
    compiles = find_compiles(tables, usage)
    runs = _list_runs(tables)
    eager, eager_idle_ns = _find_eager(tables, runs, busy.height, compiles=not compiles.is_empty())
    costs = [
        *_find_op_costs(tables, scale),
        *_find_remat(tables, scale),
        *_find_exposed(tables, busy.height),
        *_find_twice(tables, runs, busy.height),
        *_find_recompilation(tables, compiles),
        *eager,
        *_find_host(tables, runs, eager_idle_ns, elapsed_ns, busy.height),
    ]
    worth = [
        replace(
            advice,
            action=advice.action or ACTIONS[advice.kind],
            saving_fraction=min(advice.saving_ns / elapsed_ns, 1.0),
        )
        for advice in costs
        if advice.saving_ns >= WORTH_SAYING * elapsed_ns
    ]
    return sorted(worth, key=lambda advice: -advice.saving_ns)


def _find_op_costs(tables: Tables, scale: float) -> Iterator[Advice]:
    """Advice about ops that need not run, or not so long."""
    computes = pl.col("category").is_in(COMPUTATIONS).any()
    work = summarise_work(tables).group_by(KEY).agg(pl.col("device_ns", "count").sum(), computes=computes)
    named = tables.instructions.select("program_id", "op_name", "opcode", "shape", instruction=pl.col("name"))
    how = tables.attribution.group_by(KEY).agg(pl.col("how").unique())
    kept = tables.avoidable.filter(pl.col("kind").is_in(["donate", "copy"])).select(*KEY, is_kept=True)
    ops = work.join(named, on=KEY, how="left").join(how, on=KEY, how="left").join(kept, on=KEY, how="left")
    is_passed, is_carried = (pl.col("how").list.contains(one).fill_null(value=False) for one in ("passed", "carried"))
    is_callback = pl.col("op_name").str.contains(CALLBACKS)
    is_double = pl.col("shape").str.contains(r"\b(?:f64|c128)\[")
    moves_alone = pl.col("opcode").str.starts_with("fusion") & pl.col("op_name").str.contains(MOVED)
    by_hand = ~pl.col("op_name").fill_null("").str.contains(BACKWARD) & ~pl.col("computes")
    is_move = (pl.col("opcode").is_in(MOVES) | moves_alone) & by_hand & ~is_passed & ~is_carried
    chosen_by = {
        "donate": is_passed,
        "layout": is_move & pl.col("is_kept").is_null(),
        "callback": is_callback,
        "double": is_double & ~is_passed & ~is_callback,
    }
    parts = [
        tables.avoidable,
        *(ops.filter(chosen).select(*KEY, kind=pl.lit(kind)) for kind, chosen in chosen_by.items()),
    ]
    whole = pl.when(pl.col("kind") == "double").then(SINGLE_OF_DOUBLE).otherwise(1.0)
    costs = (
        pl.concat(parts, how="diagonal")
        .unique([*KEY, "kind"], keep="first", maintain_order=True)
        .join(ops.select(*KEY, "device_ns", "count"), on=KEY)
        .with_columns(saving_ns=pl.col("device_ns") * pl.col("fraction").fill_null(whole))
        .sort("saving_ns", descending=True)
    )
    for kind, what in OPS.items():
        rows = costs.filter(pl.col("kind") == kind)
        if rows.is_empty():
            continue
        first = rows.row(0, named=True)
        yield Advice(
            kind=kind,
            evidence=(
                f"{int(rows['count'].sum()):,} {what} take {int(rows['device_ns'].sum()) / 1e6:,.3f} ms, most of it "
                f"{first['instruction']}"
            ),
            saving_ns=round(float(rows["saving_ns"].sum()) * scale),
            program_id=first["program_id"],
            instruction=first["instruction"],
        )


def _find_remat(tables: Tables, scale: float) -> Iterator[Advice]:
    spent = tables.ops.group_by(KEY).agg(ns=pl.col("duration_ns").sum())
    remat = tables.scopes.filter(pl.col("phase") == "remat").join(spent, on=KEY)
    remat = remat.with_columns(ns=pl.col("ns") * pl.col("weight")).sort("ns", descending=True)
    if remat.is_empty():
        return
    total_ns, first = float(remat["ns"].sum()), remat.row(0, named=True)
    yield Advice(
        kind="remat",
        evidence=(
            f"{remat.height:,} instructions compute {total_ns / 1e6:,.3f} ms again for the backward pass; at most that "
            "is saved, since what is kept is written and read"
        ),
        saving_ns=round(total_ns * scale),
        program_id=first["program_id"],
        instruction=first["instruction"],
    )


def _find_exposed(tables: Tables, devices: int) -> Iterator[Advice]:
    key = [*RUN, "instruction", "start_ns"]
    waits = tables.collectives.select(*key, pl.col("wait_ns").fill_null(0)).unique(key)
    ops = tables.ops.join(waits, on=key, how="left").with_columns(pl.col("wait_ns").fill_null(0))
    sending = ops.with_columns(pl.col("start_ns") + pl.col("wait_ns"), pl.col("duration_ns") - pl.col("wait_ns"))
    exposed_ns = int(find_exposed(replace(tables, ops=sending))["duration_ns"].sum())
    runs = tables.collectives.group_by(KEY).agg(ns=pl.col("duration_ns").sum()).sort("ns", descending=True)
    if not exposed_ns or runs.is_empty():
        return
    program_id, instruction, _ = runs.row(0)
    yield Advice(
        kind="exposed",
        evidence=(
            f"{exposed_ns / devices / 1e6:,.3f} ms a device in which it sends and computes nothing, without the "
            f"{int(ops['wait_ns'].sum()) / devices / 1e6:,.3f} ms in which it waits for other devices"
        ),
        saving_ns=exposed_ns // devices,
        program_id=program_id,
        instruction=instruction,
    )


def _find_twice(tables: Tables, runs: pl.DataFrame, devices: int) -> Iterator[Advice]:
    """The longest program whose lines run again in a program with a gradient, as often and on arrays of its shapes."""
    spent = tables.ops.group_by(KEY).agg(ns=pl.col("duration_ns").sum())
    placed = tables.attribution.join(spent, on=KEY).join(tables.frames, on=["program_id", "frame_id"])
    lines = placed.group_by("program_id", "file", "line").agg(ns=(pl.col("ns") * pl.col("weight")).sum())
    is_array = (pl.col("opcode") == "parameter") & pl.col("shape").str.contains(r"^\w+\[\d")
    shapes = dict(tables.instructions.filter(is_array).group_by("program_id").agg("shape").iter_rows())
    programs = (
        runs.group_by("program_id").agg(times=pl.len(), ns=pl.col("duration_ns").sum()).sort("ns", descending=True)
    )
    gradients = tables.scopes.filter(pl.col("phase") == "backward")["program_id"].unique().implode()
    with_gradient = programs.filter(pl.col("program_id").is_in(gradients)).select("times", gradient="program_id")
    others = programs.filter(~pl.col("program_id").is_in(gradients))
    names = dict(tables.programs.select("program_id", "name").iter_rows())
    for row in others.join(with_gradient, on="times", maintain_order="left").iter_rows(named=True):
        own, beside = (lines.filter(pl.col("program_id") == row[name]) for name in ("program_id", "gradient"))
        again = float(own.join(beside, on=["file", "line"], how="semi")["ns"].sum())
        same_shapes = set(shapes.get(row["program_id"], ())) <= set(shapes.get(row["gradient"], ()))
        if own.is_empty() or not same_shapes or again < SAME_LINES * float(own["ns"].sum()):
            continue
        yield Advice(
            kind="twice",
            evidence=(
                f"{names.get(row['program_id'])} ran {row['times']} times, and its lines again below "
                f"{names.get(row['gradient'])}, as often, on arrays of the same shapes"
            ),
            saving_ns=row["ns"] // devices,
            program_id=row["program_id"],
            instruction=spent.filter(pl.col("program_id") == row["program_id"]).sort("ns")["instruction"][-1],
        )
        return


def _find_recompilation(tables: Tables, compiles: pl.DataFrame) -> Iterator[Advice]:
    """The program's own function whose compilations but the first took longest while the trace was on.

    Functions of JAX, which compile for each array that a program makes, are on no stack: JAX leaves itself out.
    """
    called = pl.col("function").str.split(".").list.last()
    place = pl.struct("file", "function", pl.when(called == "<lambda>").then("line"))
    functions = (
        tables.frames.join(tables.programs.select("program_id", "name"), on="program_id")
        .filter(plain(called) == plain(pl.col("name")))
        .group_by(program=plain(pl.col("name")))
        .agg(functions=place.n_unique())
    )
    again = 1 - pl.col("functions") / pl.col("times")
    costs = (
        compiles.select("name", "duration_ns", program=plain(pl.col("program")))
        .join(functions, on="program")
        .group_by("program", "name", "functions")
        .agg(pl.col("duration_ns").sum(), times=pl.len())
        .filter(pl.col("times") > pl.col("functions"))
        .group_by("program")
        .agg((pl.col("duration_ns") * again).sum(), pl.col("times").max())
        .sort("duration_ns", descending=True)
    )
    for name, saving_ns, times in costs.iter_rows():
        programs = tables.programs.filter(plain(pl.col("name")) == name)
        shapes = explain_shapes(tables, programs)
        if not shapes and programs["fingerprint"].n_unique() >= times:  # one function, but other computations
            continue
        how = "pad its arguments to one shape"
        if not shapes:
            how = "make its jax.jit once, and arrays of static arguments and Python scalars (jax_explain_cache_misses)"
        yield Advice(
            kind="recompile",
            action=f"Compile {name} once: {how}",
            evidence=f"it was compiled {times} times{list_callers(compiles, name)}{shapes}",
            saving_ns=round(saving_ns),
        )
        return


def find_compiles(tables: Tables, usage: Mapping[str, float] | None) -> pl.DataFrame:
    """The outermost compile ranges while the trace was on.

    Args:
        usage: the process's usage while it was traced, from a capture's environment: it counts JAX's own events, whose
            clock differs from the ops'. None for a raw trace, whose ranges have one clock.
    """
    outermost = tables.compile.filter(pl.col("parent_id").is_null())
    if usage is not None and "compiles" in usage:
        return outermost.sort(pl.col("start_ns") + pl.col("duration_ns")).tail(int(usage["compiles"]))
    first, last = tables.ops["start_ns"].min(), (tables.ops["start_ns"] + tables.ops["duration_ns"]).max()
    return outermost.filter(pl.col("start_ns").is_between(first, last))


def _list_runs(tables: Tables) -> pl.DataFrame:
    """The executions by device and start.

    Returns:
        Their columns, `end_ns`, `waited_ns` (since the run before it), `is_first` (of its program), and `is_eager`
        (one small operation).
    """
    work = summarise_work(tables).filter(~pl.col("category").is_in(EAGER_WORK))["program_id"].unique()
    sizes = tables.ops.group_by(RUN).agg(n_ops=pl.col("instruction").n_unique(), busiest_ns=pl.col("duration_ns").max())
    runs = tables.executions.join(sizes, on=RUN).with_columns(end_ns=pl.col("start_ns") + pl.col("duration_ns"))
    before = pl.col("end_ns").cum_max().shift(1).over("rank", "device")
    return runs.sort("rank", "device", "start_ns").with_columns(
        is_eager=(pl.col("n_ops") <= EAGER_OPS) & ~pl.col("program_id").is_in(work.implode()),
        waited_ns=pl.max_horizontal(pl.col("start_ns") - before, 0),
        is_first=pl.int_range(pl.len()).over("rank", "device", "program_id") == 0,
    )


def _find_eager(tables: Tables, runs: pl.DataFrame, devices: int, *, compiles: bool) -> tuple[list[Advice], int]:
    """Chains of programs of one small operation, and the idle time inside them.

    Fused, a chain would read and write its arrays once, as each of its operations does now. Where the trace saw
    programs compiled, the time before the first run of one is its compilation, and not counted here.
    """
    counted = pl.when(pl.col("is_first") & compiles).then(0).otherwise("waited_ns")
    chains = (
        runs.with_columns(chain=pl.col("is_eager").rle_id().over("rank", "device"), counted_ns=counted)
        .filter("is_eager")
        .group_by("rank", "device", "chain", maintain_order=True)
        .agg(
            idle_ns=pl.col("counted_ns").slice(1).sum(),
            busy_ns=pl.col("duration_ns").sum(),
            pass_ns=pl.col("busiest_ns").median(),
            n=pl.len(),
            n_programs=pl.col("program_id").n_unique(),
            program_id=pl.col("program_id").first(),
        )
        .filter(pl.col("n_programs") >= CHAIN_LENGTH)
        .with_columns(span_ns=pl.col("idle_ns") + pl.col("busy_ns"))
    )
    if chains.is_empty():
        return [], 0
    spent, kept = int(chains["span_ns"].sum()), float((chains["pass_ns"] * chains["n"] / chains["n_programs"]).sum())
    program_id = int(chains.sort("span_ns", descending=True)["program_id"][0])
    names = tables.ops.filter(pl.col("program_id") == program_id)["instruction"].drop_nulls()
    advice = Advice(
        kind="eager",
        evidence=(
            f"{int(chains['n'].sum()):,} programs of one small operation each, {chains.height:,} times several in a "
            f"row, take {spent / 1e6:,.3f} ms"
        ),
        saving_ns=max(round((spent - kept) / devices), 0),
        program_id=program_id,
        instruction=None if names.is_empty() else str(names[0]),
    )
    return [advice], int(chains["idle_ns"].sum())


def _find_host(
    tables: Tables, runs: pl.DataFrame, eager_idle_ns: int, elapsed_ns: float, devices: int
) -> Iterator[Advice]:
    """Time of the devices between programs, but for the dispatch of eager operations.

    The time before the first run of a program does not count: the host traces and compiles it, and makes its arrays.
    Nor does the time in which a CPU frees what a run allocated: its results and temporary values.
    """
    made = tables.buffers.filter(pl.lit("thunk" in tables.ops["kind"]) & pl.col("kind").is_in(["output", "temp"]))
    freed = made.group_by("program_id").agg(free_ns=pl.col("size_bytes").sum() * FREE_NS_PER_BYTE)
    waits = runs.filter(~pl.col("is_first")).join(freed, on="program_id", how="left")
    waited_ns = (pl.col("waited_ns") - pl.col("free_ns").fill_null(0.0)).clip(0)
    idle_ns = int(waits.select(waited_ns.sum()).item()) - eager_idle_ns
    programs = runs.group_by("program_id", maintain_order=True).agg(pl.len(), pl.col("duration_ns").sum())
    if idle_ns <= 0 or runs.height < CHAIN_LENGTH:
        return
    waited_ms = idle_ns / devices / 1e6
    main, count, _ = programs.sort("duration_ns", descending=True).row(0)
    times, rounds = count / devices, (pl.col("program_id") == main).cum_sum().over("rank", "device")
    by_round = waits.group_by("rank", "device", rounds.alias("round")).agg(ns=waited_ns.sum())
    usual_ns = float(by_round.select(pl.col("ns").median()).item() or 0)
    if usual_ns <= DISPATCH_MS * 1e6 and idle_ns < DISPATCH_SHARE * elapsed_ns * devices:
        return
    yield Advice(
        kind="host",
        evidence=(
            f"each device waits {waited_ms:,.3f} ms for the host, {waited_ms / times:,.3f} ms for each run of the "
            "program that takes most of its time"
        ),
        saving_ns=idle_ns // devices,
    )
