"""The ops of an accelerator, from its device plane.

In: a device plane of a trace. Out: its `Ops`.

A GPU has one line per stream. A copy is recognised by its details, or by the call that launched it.

A TPU has a line of XLA ops, in which containers enclose their contents, and a line of modules, which gives the program
and the run of the ops below it. Asynchronous work of a TPU (copies, collectives) has its own line: it overlaps the
core's ops, takes no time of the core, and makes ranges, not ops. The core's time to start such work and to wait for it
counts as ops.

Source: openxla/xla:xla/backends/profiler/gpu/cupti_collector.cc, tsl/profiler/utils/xplane_schema.cc
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import polars as pl
from numpy.typing import NDArray

from nightjar_profiling.bytes.wire import Positions
from nightjar_profiling.capture_folder.tables import fill_table
from nightjar_profiling.hlo.hlo import Program
from nightjar_profiling.readers.xplane.xplane_host import COPIED_BYTES, Decoded, Launches, decode
from nightjar_profiling.readers.xplane.xplane_ops import GRAPH, KERNEL, KINDS, MEMCPY, MEMSET, Ops, make_ops
from nightjar_profiling.readers.xplane.xplane_planes import Plane, text_of
from nightjar_profiling.readers.xplane.xplane_values import (
    Integers,
    Texts,
    as_int64,
    constant,
    look_up,
    numbers_in,
    unknown,
)

DEVICE = re.compile(r"/device:(GPU|TPU):(\d{1,9})")
GPU_STATS = (
    *("hlo_op", "program_id", "run_id", "correlation_id", "cuda_graph_id", "cuda_graph_node_id"),
    *("memcpy_details", "Memset_details"),
)
KIND_OF_NAME = [(re.compile("memcpy", re.I), MEMCPY), (re.compile("memset", re.I), MEMSET)]
OPCODE = re.compile(r" ([a-z][a-z0-9\-]*)\(")  # in that text, behind the shape
CONTROL = ("while", "conditional", "call", "custom-call")  # a kernel of the user's (Pallas) may record its parts
ASYNC_LINE = "Async XLA Ops"
GRAPH_NAME = re.compile("CudaGraph")
MODULE_NAME = re.compile(r"(.*)\((\d{1,20})\)", re.DOTALL)
OP_TEXT = re.compile(r"%?([\w.\-]+)")  # a TPU names an op by its HLO text: `%fusion.1 = f32[8]{0} fusion(...)`


def read_gpu(plane: Plane, device: int, launches: Launches) -> Ops:
    """The kernels and copies of a GPU."""
    decoded = decode(plane, GPU_STATS, [line for line in plane.lines if line.name.startswith("Stream #")])
    count = len(decoded.line)
    program, instruction = decoded.integers("program_id"), decoded.texts("hlo_op")
    named = program.known & (instruction.codes >= 0)
    if not named.all():
        program = Integers(values=np.where(named, program.values, 0), known=named)
        instruction = Texts(codes=np.where(named, instruction.codes, -1), names=instruction.names)
    correlation = decoded.integers("correlation_id")
    at, launched = launches.find(correlation)
    memcpy, memset = decoded.texts("memcpy_details"), decoded.texts("Memset_details")
    kind = np.array([*map(_kind_of, decoded.names.names), KERNEL])[decoded.names.codes]
    kind[(memcpy.codes >= 0) | (launched & launches.is_copy[at] if launched.any() else False)] = MEMCPY
    kind[memset.codes >= 0] = MEMSET
    size = numbers_in(memcpy if (memcpy.codes >= 0).any() else memset, COPIED_BYTES)
    if (memset.codes >= 0).any():
        other = numbers_in(memset, COPIED_BYTES)
        size = Integers(values=np.where(other.known, other.values, size.values), known=size.known | other.known)
    if launched.any():
        from_launch = launched & launches.bytes.known[at] & ~size.known
        size = Integers(
            values=np.where(from_launch, launches.bytes.values[at], size.values), known=size.known | from_launch
        )
    return make_ops(
        count,
        device=constant(device, count),
        program=program,
        run=_find_runs(decoded, program, launches.run.take(at), launched)
        if launched.any()
        else decoded.integers("run_id"),
        instruction=instruction,
        stream=decoded.line_names,
        kernel=decoded.names,
        kind=Texts(codes=kind, names=KINDS),
        start_ns=decoded.start_ns,
        duration_ns=decoded.duration_ns,
        correlation=correlation,
        graph=decoded.integers("cuda_graph_id"),
        graph_node=decoded.integers("cuda_graph_node_id"),
        bytes=size,
        launch_ns=Integers(values=launches.start_ns[at], known=launched) if launched.any() else unknown(count),
    )


def _find_runs(decoded: Decoded, program: Integers, called: Integers, launched: NDArray[np.bool_]) -> Integers:
    """The run of a program that each op belongs to: as the trace says, else the run that called for it."""
    recorded = decoded.integers("run_id")
    from_call = called.known & launched & program.known & ~recorded.known
    return Integers(values=np.where(from_call, called.values, recorded.values), known=from_call | recorded.known)


def read_tpu(plane: Plane, device: int, programs: Mapping[int, Program]) -> Ops:
    """The ops of a TPU core, without those that contain others."""
    decoded = decode(plane, ("run_id", "program_id"), [line for line in plane.lines if line.name == "XLA Ops"])
    modules = decode(plane, ("run_id",), [line for line in plane.lines if line.name == "XLA Modules"])
    count = len(decoded.line)
    module = _module_of(decoded, modules)
    program_ids = {
        number: as_int64(int(name[2]))
        for number, text in plane.event_names.items()
        if (name := MODULE_NAME.fullmatch(text))
    }
    own = decoded.integers("program_id")
    if len(modules.line):
        above = modules.events.metadata_id[module]
    else:
        above = np.zeros(count, np.int64)
    ids = np.array([program_ids.get(number, 0) for number in above.tolist()], np.int64)
    in_module = np.array([number in program_ids for number in above.tolist()], np.bool_) & (module >= 0)
    run = modules.integers("run_id")
    instruction = look_up(decoded.events.metadata_id, _instructions(plane))
    program = Integers(values=np.where(own.known, own.values, ids), known=own.known | in_module)
    has = program.known & (instruction.codes >= 0)
    ops = make_ops(
        count,
        device=constant(device, count),
        program=Integers(values=np.where(has, program.values, 0), known=has),
        run=run.take(module) if len(modules.line) else unknown(count),
        instruction=Texts(codes=np.where(has, instruction.codes, -1), names=instruction.names),
        stream=decoded.line_names,
        kernel=decoded.names,
        kind=Texts(codes=constant(KERNEL, count), names=KINDS),
        start_ns=decoded.start_ns,
        duration_ns=decoded.duration_ns,
    )
    return ops.take(~_find_tpu_containers(decoded, ops, programs))


def read_async(plane: Plane, rank: int) -> pl.DataFrame:
    """Work of a TPU outside its core, as rows of the table `ranges`, from start to completion."""
    decoded = decode(plane, (), [line for line in plane.lines if line.name == ASYNC_LINE])
    threads = np.array([line.line_id for line in decoded.lines] or [0], np.int64)
    return fill_table(
        "ranges",
        len(decoded.line),
        rank=rank,
        thread=threads[decoded.line],
        domain=f"{plane.name} {ASYNC_LINE}",
        name=decoded.names.column(),
        start_ns=decoded.start_ns,
        duration_ns=decoded.duration_ns,
    )


def _find_tpu_containers(decoded: Decoded, ops: Ops, programs: Mapping[int, Program]) -> NDArray[np.bool_]:
    """Which ops contain others: control flow, by the HLO, that has another op within it, by the picosecond.

    In whole nanoseconds a short op seems to lie within a long one that follows it. If neither a program nor the name of
    the event gives the opcode, an op that encloses another contains it.
    """
    start, end = decoded.start_ps, decoded.start_ps + decoded.events.duration_ps
    order = np.lexsort((-end, start, decoded.line))
    order = order[end[order] > start[order]]  # an op of no duration is within no other
    here, after = order[:-1], order[1:]
    encloses = np.zeros(len(start), np.bool_)
    encloses[here] = (
        (decoded.line[here] == decoded.line[after]) & (start[after] < end[here]) & (end[after] <= end[here])
    )
    for row in np.flatnonzero(encloses).tolist():
        if ops.program.known[row]:
            program = programs.get(int(ops.program.values[row]))
        else:
            program = None
        instruction = program and program.instructions.get(ops.instruction.names[ops.instruction.codes[row]])
        text = OPCODE.search(ops.kernel.names[ops.kernel.codes[row]])
        opcode = text and text[1]
        if instruction:
            opcode = instruction.opcode
        encloses[row] = opcode is None or opcode in CONTROL
    return encloses


def _kind_of(name: str) -> int:
    if GRAPH_NAME.match(name):
        return GRAPH
    return next((kind for pattern, kind in KIND_OF_NAME if pattern.match(name)), KERNEL)


def _instructions(plane: Plane) -> dict[int, str]:
    names = {}
    for number, metadata in plane.meta.event_metadata.items():
        text = text_of(metadata.display_name) or text_of(metadata.name)
        if (name := OP_TEXT.match(text)) is not None:
            names[number] = name[1]
    return names


def _module_of(decoded: Decoded, modules: Decoded) -> Positions:
    """The module event that was running when each op began; -1 if there is none."""
    order = np.argsort(modules.start_ps, kind="stable")
    at = np.searchsorted(modules.start_ps[order], decoded.start_ps, side="right") - 1
    inside = at >= 0
    if len(order):
        row = order[at]
        inside &= decoded.start_ps < modules.start_ps[row] + np.maximum(modules.events.duration_ps[row], 1)
        return np.where(inside, row, -1)
    return np.full(len(at), -1)
