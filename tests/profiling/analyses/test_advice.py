"""Advice: each planted cost is named with what it would save, and a program without costs has none."""

from typing import Any

import pytest

from nightjar_profiling.analyses.advice import Advice, advise, find_compiles
from nightjar_profiling.capture_folder.tables import Tables
from tests.profiling.tabled import RUN, tables

MS = 1_000_000


def step(at_ms: int, *ops: tuple[str, int], program: int = 1, execution: int = 0) -> list[dict[str, Any]]:
    """Ops of an execution, one after another: instruction and milliseconds."""
    rows = []
    for instruction, ms in ops:
        common = {"rank": 0, "device": 0, "program_id": program, "execution": execution, "kind": "thunk"}
        rows.append({**common, "instruction": instruction, "start_ns": at_ms * MS, "duration_ns": ms * MS})
        at_ms += ms
    return rows


def capture(ops: list[dict[str, Any]], **more: list[dict[str, Any]]) -> Tables:
    spans: dict[tuple[int, int], list[int]] = {}
    for row in ops:
        spans.setdefault((row["program_id"], row["execution"]), []).extend(
            [row["start_ns"], row["start_ns"] + row["duration_ns"]]
        )
    executions = [
        {**RUN, "program_id": program, "execution": n, "start_ns": min(t), "duration_ns": max(t) - min(t)}
        for (program, n), t in spans.items()
    ]
    return tables(ops=ops, executions=executions, **more)


def instruction(name: str, opcode: str, op_name: str = "", shape: str = "f32[8]", program: int = 1) -> dict[str, Any]:
    return {"program_id": program, "name": name, "opcode": opcode, "op_name": op_name, "shape": shape}


def only(advice: list[Advice]) -> Advice:
    assert len(advice) == 1, advice
    return advice[0]


def test_a_program_of_products_alone_has_no_advice() -> None:
    ops = [row for n in range(4) for row in step(10 * n, ("dot", 10), execution=n)]
    assert advise(capture(ops, instructions=[instruction("dot", "dot")])) == []
    assert advise(capture([])) == []


@pytest.mark.parametrize(
    ("kind", "row", "saving"),
    [
        ("layout", instruction("x", "transpose"), 0.3),
        ("layout", instruction("x", "fusion:kLoop", "jit(f)/transpose"), 0.3),
        ("callback", instruction("x", "custom-call", "jit(f)/pure_callback"), 0.3),
        ("double", instruction("x", "dot", shape="f64[8,8]"), 0.15),
    ],
)
def test_ops_that_need_not_run_save_their_time(kind: str, row: dict[str, Any], saving: float) -> None:
    advice = only(advise(capture(step(0, ("dot", 7), ("x", 3)), instructions=[instruction("dot", "dot"), row])))
    assert (advice.kind, advice.instruction) == (kind, "x")
    assert advice.saving_fraction == pytest.approx(saving)


@pytest.mark.parametrize(
    ("row", "how"),
    [
        (instruction("x", "transpose", "jit(f)/transpose(jvp())/transpose"), "own"),
        (instruction("x", "copy", "jit(f)/while/body/closed_call"), "carried"),
        (instruction("x", "fusion:kOutput", "jit(f)/transpose") | {"main_work": "dot"}, "own"),
    ],
)
def test_moves_that_nobody_wrote_ask_for_nothing(row: dict[str, Any], how: str) -> None:
    attribution = [{"program_id": 1, "instruction": "x", "frame_id": 1, "root_weight": 1.0, "how": how}]
    rows = [instruction("dot", "dot"), row]
    assert advise(capture(step(0, ("dot", 7), ("x", 3)), instructions=rows, attribution=attribution)) == []


def test_copies_of_arguments_into_results_ask_for_donation() -> None:
    attribution = [{"program_id": 1, "instruction": "copy", "frame_id": 1, "root_weight": 1.0, "how": "passed"}]
    rows = [instruction("dot", "dot"), instruction("copy", "copy")]
    advice = only(advise(capture(step(0, ("dot", 6), ("copy", 4)), instructions=rows, attribution=attribution)))
    assert (advice.kind, advice.saving_ns) == ("donate", 4 * MS)


def test_avoidable_work_saves_its_fraction_and_copies_of_one_layout_nothing() -> None:
    rows = [instruction("dot", "dot"), instruction("x", "fusion:kLoop"), instruction("copy", "copy")]
    avoidable = [
        {"program_id": 1, "instruction": "x", "kind": "lookup", "fraction": 0.5},
        {"program_id": 1, "instruction": "copy", "kind": "copy", "fraction": 1.0},
    ]
    advice = only(advise(capture(step(0, ("dot", 4), ("x", 4), ("copy", 2)), instructions=rows, avoidable=avoidable)))
    assert (advice.kind, advice.instruction, advice.saving_ns) == ("lookup", "x", 2 * MS)


@pytest.mark.parametrize(
    ("line", "shape", "phase", "share", "kinds"),
    [
        (3, "f32[8]", "backward", 1.0, ["twice"]),
        (4, "f32[8]", "backward", 1.0, []),  # another function
        (3, "f32[9]", "backward", 1.0, []),  # other data, as of an evaluation
        (3, "f32[8]", "forward", 1.0, []),  # no gradient
        (3, "f32[8]", "backward", 0.95, ["twice"]),
        (3, "f32[8]", "backward", 0.85, []),  # much of its time is of other lines
    ],
)
def test_a_loss_beside_its_gradient_runs_twice(
    line: int, shape: str, phase: str, share: float, kinds: list[str]
) -> None:
    ops = [row for n in range(4) for row in step(10 * n, ("dot", 4), program=1, execution=n)]
    ops += [row for n in range(4) for row in step(10 * n + 4, ("dot", 6), program=2, execution=n)]
    recorded = {
        "instructions": [
            row
            for program, of in ((1, "f32[8]"), (2, shape))
            for row in (instruction("dot", "dot", program=program), instruction("p", "parameter", "x", of, program))
        ],
        "frames": [
            {"program_id": n, "frame_id": at, "file": "a.py", "line": at} for n, at in ((1, 3), (1, 9), (2, line))
        ],
        "attribution": [
            {"program_id": n, "instruction": "dot", "frame_id": at, "weight": weight, "how": "own"}
            for n, at, weight in ((1, 3, share), (1, 9, 1 - share), (2, line, 1.0))
        ],
        "scopes": [{"program_id": 2, "instruction": "dot", "scope": "", "phase": phase, "weight": 1.0}],
    }
    advice = advise(capture(ops, **recorded))
    assert [(one.kind, one.saving_ns) for one in advice] == [(kind, 16 * MS) for kind in kinds]


def test_the_wait_before_the_first_run_of_a_program_is_not_the_hosts() -> None:
    """It traces and compiles it then."""
    ops = step(0, ("dot", 4)) + [row for n in range(4) for row in step(100 + 4 * n, ("dot", 4), program=2, execution=n)]
    assert advise(capture(ops, instructions=[instruction("dot", "dot", program=n) for n in (1, 2)])) == []


def test_what_is_computed_again_for_the_backward_pass_is_told() -> None:
    scopes = [
        {"program_id": 1, "instruction": "x", "scope": "a", "phase": "remat", "weight": 0.5},
        {"program_id": 1, "instruction": "x", "scope": "a", "phase": "backward", "weight": 0.5},
    ]
    rows = [instruction("dot", "dot"), instruction("x", "dot")]
    advice = only(advise(capture(step(0, ("dot", 6), ("x", 4)), instructions=rows, scopes=scopes)))
    assert (advice.kind, advice.saving_ns) == ("remat", 2 * MS)


@pytest.mark.parametrize(
    ("ms", "wait", "last_wait", "kinds"),
    [
        (6, 1, 1, ["host"]),
        (7, 1, 1, []),
        (40, 1, 1, []),
        (40, 2, 2, ["host"]),
        (40, 1, 3, []),  # now and then, as of a process beside it
        (40, 1, 20, ["host"]),
    ],
)
def test_the_dispatch_of_programs_is_no_waiting(ms: int, wait: int, last_wait: int, kinds: list[str]) -> None:
    """A median of a millisecond or less, and below a tenth of the time."""
    starts = [0, ms + wait, 2 * (ms + wait), 3 * ms + 2 * wait + last_wait]
    ops = [row for n, at in enumerate(starts) for row in step(at, ("dot", ms), execution=n)]
    assert [advice.kind for advice in advise(capture(ops, instructions=[instruction("dot", "dot")]))] == kinds


@pytest.mark.parametrize(
    ("kind", "megabytes", "savings"), [("thunk", 10, [9]), ("thunk", 40, []), ("kernel", 40, [12])]
)
def test_a_cpu_frees_between_two_runs_what_the_first_allocated(kind: str, megabytes: int, savings: list[int]) -> None:
    """Three waits of 4 ms: 0.1 ms of each for a megabyte."""
    ops = [{**row, "kind": kind} for n in range(4) for row in step(104 * n, ("dot", 100), execution=n)]
    sizes = {"output": megabytes // 2, "temp": megabytes // 2, "parameter": 1000}
    buffers = [{"program_id": 1, "kind": name, "size_bytes": size * 1_000_000} for name, size in sizes.items()]
    advice = advise(capture(ops, instructions=[instruction("dot", "dot")], buffers=buffers))
    assert [one.saving_ns for one in advice] == [saving * MS for saving in savings]


@pytest.mark.parametrize(("opcode", "saved"), [("add", 18 - 2), ("sort", None), ("fft", None), ("cholesky", None)])
def test_a_chain_of_small_programs_would_take_one_pass(opcode: str, saved: int | None) -> None:
    ops = [row for n in range(5) for row in step(4 * n, ("op", 2), program=n)]
    rows = [instruction("op", opcode, program=n) for n in range(5)]
    advice = {one.kind: one.saving_ns for one in advise(capture(ops, instructions=rows))}
    assert advice.get("eager") == (saved and saved * MS)


COMPILES = [
    {"rank": 0, "range_id": n, "name": "compile by XLA", "program": "f", "start_ns": n, "duration_ns": 50 * MS}
    for n in range(4)
]


def test_a_program_compiled_again_names_the_argument_that_changed() -> None:
    ops = [*step(0, ("dot", 10)), *step(60, ("dot", 10), program=2), *step(130, ("dot", 10), program=3)]
    programs = [{"program_id": n, "name": "jit_f"} for n in (1, 2, 3)]
    rows = [instruction("dot", "dot", program=n) for n in (1, 2, 3)]
    rows += [instruction("p", "parameter", "x", f"f32[{n}]", program=n) for n in (1, 2, 3)]
    frames = [{"program_id": n, "frame_id": 1, "file": "a.py", "line": 3 + n, "function": "main.f"} for n in (1, 2, 3)]
    recorded = {"instructions": rows, "programs": programs, "compile": COMPILES}
    assert advise(capture(ops, **recorded), {"compiles": 3}) == []  # a function of JAX: it is on no stack
    lambdas = [{**frame, "function": "main.<locals>.<lambda>"} for frame in frames]
    others = [{**row, "name": "jit__lambda_"} for row in programs]
    unlike = {
        **recorded,
        "frames": lambdas,
        "programs": others,
        "compile": [{**c, "program": "<lambda>"} for c in COMPILES],
    }
    assert advise(capture(ops, **unlike), {"compiles": 3}) == []  # three functions
    same = {**recorded, "frames": frames, "instructions": rows[:3]}
    (advice,) = advise(capture(ops, **same), {"compiles": 3})
    assert advice.action.startswith("Compile f once: make its jax.jit once, and arrays of static arguments and Python")
    other = [{**row, "fingerprint": str(n)} for n, row in enumerate(programs)]
    assert advise(capture(ops, **{**same, "programs": other}), {"compiles": 3}) == []  # other computations
    found = advise(capture(ops, frames=frames, **recorded), {"compiles": 3})
    assert [advice.kind for advice in found] == ["recompile"]
    assert found[0].saving_ns == 100 * MS
    assert found[0].evidence == "it was compiled 3 times: its argument x is f32[1], f32[2], f32[3]"


def test_arrays_that_a_program_makes_once_are_no_chain_and_no_recompilation() -> None:
    """Their programs take little; the time before each is its compilation."""
    names = ("broadcast_in_dim", "convert", "broadcast_in_dim", "iota")
    ops = [row for n in range(4) for row in step(60 * n, ("fill", 1), program=n)]
    ops += [row for n in range(10) for row in step(240 + 20 * n, ("dot", 20), program=4, execution=n)]
    rows = [*(instruction("fill", "broadcast", program=n) for n in range(4)), instruction("dot", "dot", program=4)]
    programs = [{"program_id": n, "name": f"jit_{name}"} for n, name in enumerate(names)]
    compiles = [
        {"rank": 0, "range_id": n, "name": "compile", "program": name, "start_ns": n, "duration_ns": 59 * MS}
        for n, name in enumerate((*names, "step"))
    ]
    found = advise(capture(ops, instructions=rows, programs=programs, compile=compiles), {"compiles": 5})
    assert found == []


def test_two_ops_at_a_time_cost_half_of_their_time() -> None:
    common = {"rank": 0, "device": 0, "program_id": 1, "execution": 0, "start_ns": 0, "duration_ns": 10 * MS}
    ops = [{**common, "instruction": name, "kind": "thunk"} for name in ("dot", "turn")]
    advice = only(advise(capture(ops, instructions=[instruction("dot", "dot"), instruction("turn", "transpose")])))
    assert advice.saving_fraction == pytest.approx(0.5)


@pytest.mark.parametrize(("ms", "kinds"), [(19, []), (20, ["layout"]), (21, ["layout"])])
def test_advice_saves_two_hundredths_of_the_time_or_more(ms: int, kinds: list[str]) -> None:
    rows = [instruction("dot", "dot"), instruction("x", "transpose")]
    advice = advise(capture(step(0, ("dot", 1000 - ms), ("x", ms)), instructions=rows))
    assert [one.kind for one in advice] == kinds


def test_the_largest_saving_comes_first() -> None:
    rows = [instruction("dot", "dot"), instruction("x", "transpose"), instruction("y", "dot", shape="f64[8]")]
    advice = advise(capture(step(0, ("dot", 2), ("x", 3), ("y", 5)), instructions=rows))
    assert [(one.kind, one.saving_ns) for one in advice] == [("layout", 3 * MS), ("double", 2.5 * MS)]


def test_nothing_saves_more_than_the_whole_time() -> None:
    tables = capture(
        step(0, ("dot", 10)),
        instructions=[instruction("dot", "dot")],
        programs=[{"program_id": 1, "name": "jit_f"}],
        frames=[{"program_id": 1, "frame_id": 1, "file": "a.py", "line": 3, "function": "f"}],
        compile=COMPILES,
    )
    advice = only(advise(tables, {"compiles": 3}))
    assert (advice.kind, advice.saving_ns, advice.saving_fraction) == ("recompile", 100 * MS, 1.0)


def test_communication_that_nothing_hides_names_the_message_that_takes_longest() -> None:
    ops = step(0, ("dot", 4), ("small", 1), ("large", 5))
    common = {"rank": 0, "device": 0, "program_id": 1, "execution": 0}
    messages = [
        {**common, "instruction": "small", "start_ns": 4 * MS, "duration_ns": 1 * MS},
        {**common, "instruction": "large", "start_ns": 5 * MS, "duration_ns": 5 * MS},
    ]
    rows = [instruction("dot", "dot"), instruction("small", "all-reduce"), instruction("large", "all-gather")]
    advice = only(advise(capture(ops, instructions=rows, collectives=messages)))
    assert (advice.kind, advice.instruction, advice.saving_ns) == ("exposed", "large", 6 * MS)
    assert advice.evidence.startswith("6.000 ms a device ")
    messages[1]["wait_ns"] = 3 * MS
    advice = only(advise(capture(ops, instructions=rows, collectives=messages)))
    assert advice.saving_ns == 3 * MS
    assert advice.evidence.endswith("without the 3.000 ms in which it waits for other devices")


def test_a_raw_trace_counts_the_compiles_between_its_first_and_its_last_op() -> None:
    ops = [row for n in range(2) for row in step(10 * n, ("dot", 5), execution=n)]
    spans = [{"rank": 0, "range_id": n, "start_ns": at * MS, "duration_ns": MS} for n, at in enumerate((-1, 0, 9, 16))]
    assert find_compiles(capture(ops, compile=spans), None)["range_id"].to_list() == [1, 2]
