"""The further tables of a report page, one function per table, each a `Section`.

In: the tables of a capture. Out: the sections for which it has data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from nightjar_profiling.analyses.advice import Advice
from nightjar_profiling.analyses.categories import summarise_categories
from nightjar_profiling.analyses.communication.collectives import find_stragglers
from nightjar_profiling.analyses.communication.overlap import summarise_overlap
from nightjar_profiling.analyses.compile_time import summarise_compile
from nightjar_profiling.analyses.gaps import summarise_devices
from nightjar_profiling.analyses.memory import attribute_buffers, summarise_memory
from nightjar_profiling.analyses.modules import tabulate_modules
from nightjar_profiling.analyses.recompiled import find_recompiled
from nightjar_profiling.analyses.roofline import Peak, measure_roofline
from nightjar_profiling.analyses.steps import summarise_programs, summarise_steps
from nightjar_profiling.attribution.scopes import PHASES
from nightjar_profiling.attribution.stacks import NO_STACK
from nightjar_profiling.capture_folder.tables import Tables
from nightjar_profiling.report.section import Kind, Lines, Section, make_section, with_line

MOST_RANGES = 5_000


def find_sections(tables: Tables, lines: Lines, peak: Peak | None, advice: Sequence[Advice] = ()) -> list[Section]:
    """The sections for which the capture has data; `peak` of its devices."""
    sections = [
        next_steps(advice, lines),
        categories(tables),
        opcodes(tables),
        modules(tables),
        kernels(tables),
        programs(tables),
        steps(tables),
        devices(tables),
        collectives(tables, lines),
        stragglers(tables),
        roofline(tables, lines, peak),
        compile_time(tables),
        compiled_again(tables),
        memory(tables, lines),
        ranges(tables),
    ]
    return [section for section in sections if section["columns"][0]["values"]]


def categories(tables: Tables) -> Section:
    """Device time by category of work."""
    frame = summarise_categories(tables).rename({"device_ns": "time", "count": "ops", "fraction": "share"})
    note = "Device time by category of work. A fusion counts as a matrix product if its flops are mostly those of one."
    kinds: dict[str, Kind] = {"category": "text", "time": "ns", "share": "fraction", "ops": "int"}
    return make_section("categories", "Categories", note, frame, kinds)


def opcodes(tables: Tables) -> Section:
    """Device time by HLO opcode."""
    instructions = tables.instructions.select("program_id", pl.col("name").alias("instruction"), "opcode")
    frame = (
        tables.ops.join(instructions, on=["program_id", "instruction"], how="left")
        .group_by(pl.col("opcode").fill_null("no instruction"))
        .agg(pl.col("duration_ns").sum().alias("time"), pl.len().alias("ops"))
        .with_columns(
            share=pl.col("time") / max(tables.device_time_ns, 1),
            mean=(pl.col("time") / pl.col("ops")).round().cast(pl.Int64),
        )
        .sort("time", descending=True)
    )
    kinds: dict[str, Kind] = {"opcode": "text", "time": "ns", "share": "fraction", "ops": "int", "mean": "ns"}
    return make_section("opcodes", "Opcodes", "Device time by HLO opcode; fusions by kind.", frame, kinds)


def next_steps(advice: Sequence[Advice], lines: Lines) -> Section:
    """The advice, with its predicted savings."""
    columns = ("action", "evidence", "saving_ns", "saving_fraction", "program_id", "instruction")
    schema = {"saving_ns": pl.Int64, "saving_fraction": pl.Float64, "program_id": pl.Int64}
    rows = [{name: getattr(row, name) for name in columns} for row in advice]
    frame = pl.DataFrame(rows, schema={name: schema.get(name, pl.String) for name in columns})
    frame = with_line(frame, lines).rename(
        {"action": "what to do", "saving_ns": "would save", "saving_fraction": "of the elapsed time"}
    )
    note = (
        "Costs that the program need not have, and what it could save of the time from the first op to the last. "
        "Savings are predicted from this capture alone, and overlap: do not add them up."
    )
    kinds: dict[str, Kind] = {
        "what to do": "text", "would save": "ns", "of the elapsed time": "fraction", "evidence": "text", "line": "line",
    }  # fmt: skip
    return make_section("next", "What to do next", note, frame, kinds)


def modules(tables: Tables) -> Section:
    """Device time by module of the model, and by phase of a training step."""
    frame = tabulate_modules(tables).rename({"total_ns": "time", "self_ns": "self"})
    frame = frame.with_columns(share=pl.col("time") / max(tables.device_time_ns, 1))
    note = (
        "Time by module, with all modules inside it: by named_scope, which Linen and Haiku set for each module, else "
        "by the classes whose __call__ is on the Python stack (NNX, Equinox). A fusion is split over what it holds."
    )
    kinds: dict[str, Kind] = {"module": "text", "time": "ns", "share": "fraction", "self": "ns"}
    phases = [phase for phase in PHASES if frame[phase].sum()]
    return make_section("modules", "Modules", note, frame, {**kinds, **dict.fromkeys(phases, "ns")})


def kernels(tables: Tables) -> Section:
    """GPU kernels by launch configuration, and copies; empty if no launch is described."""
    total = max(tables.device_time_ns, 1)
    copies = (
        tables.ops.filter(pl.col("kind").is_in(["memcpy", "memset"]))
        .group_by("rank", "device", "kernel")
        .agg(launches=pl.len().cast(pl.Int64), duration_ns=pl.col("duration_ns").sum())
    )
    launched = tables.kernels
    if not launched.is_empty():
        launched = pl.concat([launched, copies], how="diagonal")
    frame = launched.with_columns(
        share=pl.col("duration_ns") / total,
        mean=(pl.col("duration_ns") / pl.col("launches")).round().cast(pl.Int64),
        tensor=pl.when("tensor_cores").then(pl.lit("yes")),
    ).rename({"duration_ns": "time", "shared_bytes": "shared memory", "tensor": "tensor cores"})
    note = (
        "One row per kernel and launch configuration. Occupancy is the highest share of a multiprocessor's warps that "
        "registers, shared memory and blocks allow; tensor cores: yes where the name of the kernel says so."
    )
    kinds: dict[str, Kind] = {
        "kernel": "text", "time": "ns", "share": "fraction", "launches": "int", "mean": "ns", "grid": "text",
        "block": "text", "registers": "int", "shared memory": "bytes", "occupancy": "fraction",
        "tensor cores": "text", "rank": "index", "device": "index",
    }  # fmt: skip
    return make_section("kernels", "Kernels", note, frame.sort("time", descending=True), kinds)


def programs(tables: Tables) -> Section:
    """Device time by compiled program, with its executions."""
    frame = summarise_programs(tables).select(
        pl.col("name").fill_null("no program").alias("program"),
        pl.col("device_ns").alias("device time"),
        pl.col("device_fraction").alias("share"),
        "executions",
        pl.col("duration_ns_mean").alias("mean"),
        pl.col("duration_ns_std").alias("deviation"),
        pl.col("exposed_ns").alias("exposed"),
        pl.col("n_ops").alias("ops each"),
    )
    note = (
        "One row per compiled program. An execution lasts from its first op to the end of its last; "
        "exposed is communication that no computation overlaps."
    )
    kinds: dict[str, Kind] = {
        "program": "text", "device time": "ns", "share": "fraction", "executions": "int", "mean": "ns",
        "deviation": "ns", "exposed": "ns", "ops each": "int",
    }  # fmt: skip
    return make_section("programs", "Programs", note, frame, kinds)


def steps(tables: Tables) -> Section:
    """Steps of the training loop, as the host marked them."""
    frame = summarise_steps(tables).rename(
        {"duration_ns": "host time", "device_ns": "device time", "exposed_ns": "exposed", "n_ops": "ops"}
    )
    note = "Steps as the host marked them, with the ops launched in each; the host may run ahead of the device."
    kinds: dict[str, Kind] = {
        "rank": "index", "step": "index", "device time": "ns", "host time": "ns", "exposed": "ns", "ops": "int",
    }  # fmt: skip
    return make_section("steps", "Steps", note, frame.sort("rank", "step"), kinds)


def devices(tables: Tables) -> Section:
    """Idle time and communication of each device."""
    frame = (
        summarise_devices(tables)
        .join(summarise_overlap(tables), on=["rank", "device"], how="left", maintain_order="left")
        .select(
            "rank", "device",
            pl.col("span_ns").alias("span"),
            pl.col("idle_ns").alias("idle"),
            (1 - pl.col("busy_fraction")).alias("idle share"),
            pl.col("launch_gap_ns").alias("launch gaps"),
            pl.col("queue_gap_ns").alias("queue gaps"),
            pl.col("launch_latency_ns_p50").alias("launch latency"),
            pl.col("communication_ns").alias("communication"),
            pl.col("exposed_ns").alias("exposed"),
            pl.col("hidden_fraction").alias("hidden share"),
        )
    )  # fmt: skip
    note = (
        "Span: from the device's first op to the end of its last; idle: no op ran. Launch gaps: it waited for the "
        "host; queue gaps: it waited in its own queue (both empty without recorded launches). Launch latency: median. "
        "Exposed: communication that no computation overlaps."
    )
    kinds: dict[str, Kind] = {
        "rank": "index", "device": "index", "idle": "ns", "span": "ns", "idle share": "fraction", "launch gaps": "ns",
        "queue gaps": "ns", "launch latency": "ns", "communication": "ns", "exposed": "ns", "hidden share": "fraction",
    }  # fmt: skip
    return make_section("devices", "Devices", note, frame, kinds)


def collectives(tables: Tables, lines: Lines) -> Section:
    """Collectives by instruction: size, bandwidth and waiting time."""
    is_last = pl.col("wait_ns").fill_null(0) == 0  # of the devices: the time of the others holds waiting
    grouped = (
        tables.collectives.group_by("program_id", "instruction", "kind", "message_bytes", "group_size")
        .agg(
            pl.col("duration_ns").sum().alias("time"),
            pl.len().alias("runs"),
            pl.col("algbw_gb_per_s").filter(is_last).mean().alias("algorithm GB/s"),
            pl.col("busbw_gb_per_s").filter(is_last).mean().alias("bus GB/s"),
            pl.col("wait_ns").sum().alias("waiting"),
        )
        .rename({"message_bytes": "message", "group_size": "devices"})
        .sort("time", "instruction", descending=[True, False])
    )
    note = (
        "Collectives by instruction; message sizes and mean bandwidths by the conventions of nccl-tests, of the device "
        "that came last. Waiting: time until it arrives."
    )
    kinds: dict[str, Kind] = {
        "instruction": "text", "time": "ns", "waiting": "ns", "runs": "int", "kind": "text", "message": "bytes",
        "devices": "int", "algorithm GB/s": "rate", "bus GB/s": "rate", "line": "line",
    }  # fmt: skip
    return make_section("collectives", "Collectives", note, with_line(grouped, lines), kinds)


def stragglers(tables: Tables) -> Section:
    """Devices that the others wait for."""
    frame = find_stragglers(tables).rename(
        {"last_fraction": "last", "late_ns": "median delay", "caused_wait_ns": "caused waiting"}
    )
    note = (
        "How late each device comes to the collectives. Last: share of collectives in which it came last. Stable: "
        "share of executions in which it caused the most waiting; a device that is late by chance is not stable."
    )
    frame = frame.rename({"stability": "stable"})
    kinds: dict[str, Kind] = {
        "rank": "index", "device": "index", "caused waiting": "ns", "last": "fraction", "median delay": "ns",
        "stable": "fraction", "collectives": "int",
    }  # fmt: skip
    return make_section("stragglers", "Stragglers", note, frame, kinds)


def roofline(tables: Tables, lines: Lines, peak: Peak | None) -> Section:
    """Achieved rates of each instruction compared with the roofline."""
    if peak is None or "bf16" in peak.flops_per_s:
        element = "bf16"
    else:
        element = "f32"
    rates = measure_roofline(tables, peak, element).filter(pl.col("flops_per_s").is_not_null())
    frame = with_line(rates, lines).select(
        "instruction",
        pl.col("device_ns").alias("time"),
        (pl.col("flops_per_s") / 1e9).alias("GFLOP/s"),
        (pl.col("bytes_per_s") / 1e9).alias("GB/s"),
        pl.col("flops_per_byte").alias("flops/byte"),
        pl.col("roofline_fraction").alias("roofline share"),
        "bound",
        "line",
    )
    note = "Rates from XLA's count of flops and bytes, which leaves out transcendental functions. "
    if peak is None:
        note += "The device's peak is unknown."
    else:
        note += f"The peak is that of {peak.name} for {element} ({peak.source}). Data in a cache can exceed it."
        if element == "bf16" and (single := peak.flops_per_s.get("tf32", peak.flops_per_s.get("f32"))):
            note += f" Products of float32 reach at most {single / peak.flops_per_s[element]:.0%} of it."
    kinds: dict[str, Kind] = {
        "instruction": "text", "time": "ns", "GFLOP/s": "rate", "GB/s": "rate", "flops/byte": "rate",
        "roofline share": "fraction", "bound": "text", "line": "line",
    }  # fmt: skip
    section = make_section("roofline", "Roofline", note, frame, kinds)
    top = None if peak is None else peak.flops_per_s.get(element)
    if peak is not None and top is not None:
        section["peak"] = {"name": peak.name, "flops_per_s": top, "bytes_per_s": peak.bytes_per_s}
    return section


def compile_time(tables: Tables) -> Section:
    """Compile time by phase."""
    frame = summarise_compile(tables).rename({"wall_ns": "wall time", "fraction": "share"})
    note = "Wall time of compilation, by phase; parallel work counts with the wall time that it took."
    kinds: dict[str, Kind] = {"name": "text", "wall time": "ns", "share": "fraction", "count": "int"}
    return make_section("compile", "Compile", note, frame, kinds)


def compiled_again(tables: Tables) -> Section:
    """The functions that XLA compiled several times, with the lines that had it do so, and why."""
    note = "Each function that was compiled more than once at one line, and how its arguments differed."
    kinds: dict[str, Kind] = {"function": "text", "at": "text", "times": "int", "time": "ns", "because": "text"}
    return make_section("recompiled", "Compiled again", note, find_recompiled(tables), kinds)


def memory(tables: Tables, lines: Lines) -> Section:
    """Buffers that are live at the peak of each program."""
    names = tables.programs.select("program_id", pl.col("name").alias("program"))
    buffers = attribute_buffers(tables).join(names, on="program_id", how="left", maintain_order="left")
    frame = with_line(buffers, lines).select(
        pl.coalesce("instruction", "op_name").fill_null("unnamed").alias("buffer"),
        pl.col("size_bytes").alias("size"), "kind", "program", "line", pl.col("op_name").alias("traced as"),
    )  # fmt: skip
    note = "Allocations that are live at the memory peak of each program, from XLA's buffer assignment."
    kinds: dict[str, Kind] = {
        "buffer": "text", "size": "bytes", "kind": "text", "program": "text", "line": "line", "traced as": "text",
    }  # fmt: skip
    section = make_section("memory", "Memory", note, frame, kinds)
    section["curve"] = memory_curve(tables, lines)
    return section


def memory_curve(tables: Tables, lines: Lines) -> dict[str, Any] | None:
    """The memory over time of the program that needs most, for its picture; None if it is not recorded."""
    peaks = summarise_memory(tables)
    for number, name, always, temporary in peaks.select(
        "program_id", "name", pl.col("peak_bytes") - pl.col("temp_bytes"), "temp_bytes"
    ).iter_rows():
        moments = tables.memory_over_time.filter(program_id=number).sort("position")
        if moments.height < 2:
            continue
        rest = always + max(0, temporary - int(moments["live_bytes"].max() or 0))  # type: ignore[arg-type]
        peak = moments.row(int(moments["live_bytes"].arg_max() or 0), named=True)["instruction"]
        return {
            "program": name or "the program",
            "bytes": [rest + live for live in moments["live_bytes"]],
            "always_bytes": rest,
            "peak_instruction": peak or "",
            "peak_frame": lines.get((number, peak), NO_STACK),
        }
    return None


def ranges(tables: Tables) -> Section:
    """Host annotations by name, with the device time of the ops launched in them."""
    launched = pl.col("n_ops").is_not_null().any()  # otherwise unknown, which is not 0
    frame = (
        tables.ranges.group_by(pl.col("domain").fill_null(""), "name")
        .agg(
            pl.when(launched).then(pl.col("device_duration_ns").sum()).alias("device time"),
            pl.col("duration_ns").sum().alias("host time"),
            pl.len().alias("count"),
            pl.when(launched).then(pl.col("n_ops").sum()).alias("ops"),
        )
        .sort("device time", "host time", "name", descending=[True, True, False], nulls_last=True)
        .head(MOST_RANGES)
    )
    note = f"Ranges that the host annotated (NVTX, TraceMe), by name; the {MOST_RANGES:,} with the most device time."
    kinds: dict[str, Kind] = {
        "name": "text", "device time": "ns", "host time": "ns", "count": "int", "ops": "int", "domain": "text",
    }  # fmt: skip
    return make_section("ranges", "Ranges", note, frame, kinds)
