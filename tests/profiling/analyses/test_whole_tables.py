"""Whole tables of one small capture, worked out by hand: two devices, two executions, a message that is half hidden."""

import re

import pytest

from nightjar_profiling.analyses.advice import advise
from nightjar_profiling.analyses.categories import summarise_categories
from nightjar_profiling.analyses.communication.overlap import find_exposed, summarise_overlap
from nightjar_profiling.analyses.compile_time import account_compile_time
from nightjar_profiling.analyses.gaps import find_gaps, summarise_devices
from nightjar_profiling.analyses.modules import NO_MODULE, tabulate_modules
from nightjar_profiling.analyses.steps import assign_steps, sum_executions, summarise_programs, summarise_steps
from nightjar_profiling.capture_folder.tables import Tables
from tests.profiling.tabled import RUN, collective, op, tables

MS = 1_000_000


def captured() -> Tables:
    """Device 0: a 0-10, b 15-20, the message c 18-30 beside b and, 24-26, d. Device 1: e 0-4, f 12-13, g, h."""
    ops = [
        op("a", 0, 10, launch_ns=0, correlation_id=1),
        op("b", 15, 5, launch_ns=12, correlation_id=2),
        op("c", 18, 12, launch_ns=14, correlation_id=3, hidden_ns=4, execution=1),
        op("d", 24, 2, launch_ns=14, correlation_id=3, execution=1),  # of the same graph as c, which was its first
        op("e", 0, 4, device=1),
        op("f", 12, 1, launch_ns=3, device=1),
        op("g", 13, 100, device=1, program_id=2, execution=None),
        op(None, 113, 7, device=1, program_id=None, execution=None),  # of no program and in no step
    ]
    runs = [(0, 0, 0, 20), (0, 1, 18, 12), (1, 0, 0, 13)]
    names = ("device", "execution", "start_ns", "duration_ns")
    return tables(
        ops=ops,
        programs=[{"program_id": 1, "name": "jit_f"}, {"program_id": 2, "name": "jit_g"}],
        collectives=[collective("c", 18, 12, execution=1)],
        executions=[{**RUN, **dict(zip(names, run, strict=True))} for run in runs],
        steps=[{"rank": 0, "step": n, "start_ns": at, "duration_ns": ns} for n, at, ns in ((5, 0, 11), (6, 12, 18))],
    )


def test_gaps_devices_and_overlap() -> None:
    found = captured()
    gaps = [(0, 1, 4, 8, "queue", 1, "f", "k"), (0, 0, 10, 5, "launch", 1, "b", "k")]
    assert find_gaps(found).rows() == gaps
    first = (0, 0, 30, 25, 5, pytest.approx(25 / 30), 5, 0, 3, 4, 4)
    assert summarise_devices(found).rows() == [first, (0, 1, 120, 112, 8, pytest.approx(112 / 120), 0, 8, 9, 9, 9)]
    assert find_exposed(found).rows() == [(0, 0, 20, 4), (0, 0, 26, 4)]
    assert summarise_overlap(found).rows() == [(0, 0, 17, 12, 4, 8, pytest.approx(1 / 3)), (0, 1, 112, 0, 0, 0, None)]


def test_executions_programs_and_steps() -> None:
    found = captured()
    runs = [(0, 0, 1, 0, 0, 20, 15, 2, 0), (0, 0, 1, 1, 18, 12, 14, 2, 8), (0, 1, 1, 0, 0, 13, 5, 2, 0)]
    assert sum_executions(found).rows() == runs
    assert summarise_programs(found).rows() == [
        (2, "jit_g", 0, None, 100, pytest.approx(100 / 134), None, None, 0),
        (1, "jit_f", 3, 2.0, 34, pytest.approx(34 / 134), 15.0, pytest.approx(19**0.5), 8),
    ]
    assert assign_steps(found)["step"].to_list() == [5, 6, 6, 6, 5, 5, 6, None]
    assert summarise_steps(found).rows() == [(0, 5, 11, 15, 3, 0), (0, 6, 18, 119, 4, 8)]


def test_modules() -> None:
    parts = [("a", "M/x", "forward", 1 / 3), ("a", "M/y", "forward", 2 / 3), ("b", "M/x", "backward", 1.0)]
    names = ("instruction", "scope", "phase", "weight")
    scopes = [{"program_id": 1, **dict(zip(names, part, strict=True))} for part in parts]
    ops = [op("a", 0, 100), op("a", 0, 1), op("b", 0, 50), op(None, 0, 7)]
    assert tabulate_modules(tables(ops=ops, scopes=scopes)).rows() == [
        ("M", 0, 151, 0, 101, 50, 0, 0, 0),
        ("M/x", 1, 84, 84, 34, 50, 0, 0, 0),
        ("M/y", 1, 67, 67, 67, 0, 0, 0, 0),
        (NO_MODULE, 0, 7, 7, 0, 0, 0, 0, 7),
    ]


WORK = {  # opcode (or -), kernel and, after a slash, the work of a fusion
    "convolution": (
        "- implicit_gemm",
        "convolution k",
        "custom-call fprop_optimized",
        "fusion:kLoop k/convolution",
    ),
    "matrix product": (
        "- cutlass_80",
        "dot k",
        "custom-call nvjet_tst",
        "custom-call:gemm.1 k",
        "fusion:kLoop k/dot",
    ),
    "no instruction": ("- scale",),
    "communication": ("- ncclDevKernel_AllReduce", "all-reduce k"),
    "custom call": ("custom-call k", "fft k"),
    "sort": ("sort k",),
    "reduction": ("reduce-window k", "fusion:kInput k/reduce"),
    "data movement": ("copy k", "copy-done k", "transpose k", "pad k"),
    "indexing": ("gather k", "iota k"),
    "control flow": ("while k", "call k"),
    "elementwise": ("add k",),
    "fusion": ("fusion:kLoop k",),
}


def test_all_work_has_a_category() -> None:
    ops, instructions, expected = [op("set", 0, 7, kind="memset")], [], {"memory copy": (1, 7)}
    for number, (category, text) in enumerate((category, text) for category, texts in WORK.items() for text in texts):
        opcode, kernel, main_work = re.fullmatch(r"(\S+) (\w+)/?(.*)", text).groups()  # type: ignore[union-attr]
        name = f"{opcode.partition(':')[2]}.{number}"
        ops += [op(name, at, 10**6 + number, kernel=kernel) for at in (0, 9)]
        known = {"program_id": 1, "name": name, "opcode": opcode.replace(":gemm.1", ""), "main_work": main_work or None}
        instructions += [known] * (opcode != "-")
        count, ns = expected.get(category, (0, 0))
        expected[category] = (count + 2, ns + 2 * (10**6 + number))
    reduces = collective(next(str(row["name"]) for row in instructions if row["opcode"] == "all-reduce"), 0, 1)
    found = summarise_categories(tables(ops=ops, instructions=instructions, collectives=[reduces]))
    total = sum(ns for _, ns in expected.values())
    rows = [(category, count, ns, pytest.approx(ns / total)) for category, (count, ns) in expected.items()]
    assert found.rows() == sorted(rows, key=lambda row: (-row[2], row[0]))


def test_tasks_beside_the_compiling_thread_share_the_time_between_its_own() -> None:
    """Its own work at 20-30 and 40-50 of 100 makes three intervals; in the last, three share 40 by 30, 6 and 4."""
    spans = [(1, 1, None, 0, 100), (2, 1, 1, 20, 10), (3, 1, 1, 40, 10), (4, 2, 1, 5, 10), (5, 2, 1, 52, 30)]
    spans += [(6, 3, 1, 82, 10), (7, 2, 1, 30, 8), (8, 3, 6, 84, 4)]
    names = ("range_id", "thread", "parent_id", "start_ns", "duration_ns")
    rows = [{"rank": 0, "name": "r", **dict(zip(names, span, strict=True))} for span in spans]
    found = account_compile_time(tables(compile=rows).compile)
    assert found["wall_ns"].to_list() == [100 - 20 - 10 - 8 - 40, 10, 10, 10, 30, 6, 8, 4]


def test_waiting_is_told_by_device_and_by_run_of_the_main_program() -> None:
    """Two devices run a program of 4 ms four times, every 10 ms, and one of 1 ms once."""
    ops = [
        op(name, at * MS, ms * MS, device=device, program_id=program, execution=n, kind="thunk")
        for device in (0, 1)
        for name, program, n, at, ms in [("dot", 1, n, 10 * n, 4) for n in range(4)] + [("late", 2, 0, 34, 1)]
    ]
    runs = [{key: row[key] for key in (*RUN, "start_ns", "duration_ns")} for row in ops]
    instructions = [{"program_id": n, "name": name, "opcode": "dot"} for n, name in ((1, "dot"), (2, "late"))]
    (advice,) = advise(tables(ops=ops, executions=runs, instructions=instructions))
    assert (advice.kind, advice.saving_ns) == ("host", 18 * MS)
    assert advice.saving_fraction == pytest.approx(18 / 35)
    assert advice.evidence == (
        "each device waits 18.000 ms for the host, 4.500 ms for each run of the program that takes most of its time"
    )
