from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nightjar_profiling.analyse import read_stacks, sum_device_time
from nightjar_profiling.attribute import Attribution, attribute
from nightjar_profiling.flamegraph import build_tree
from nightjar_profiling.ingest import make_tables
from nightjar_profiling.load.hlo import Program
from nightjar_profiling.load.xplane import Op, Trace
from nightjar_profiling.usercode import user_code_test
from tests.profiling.builders import TRAINING, Hlo, program


def one(found: Program, name: str) -> tuple[int | None, str]:
    (attribution,) = attribute(found, [name])
    return attribution.frame_id, attribution.how


def test_an_instruction_with_a_stack_keeps_it() -> None:
    assert one(program(TRAINING), "dot.1") == (3, "own")


def test_a_fusion_without_a_stack_takes_that_of_the_computation_it_calls() -> None:
    assert one(program(TRAINING), "fusion.1") == (3, "called")


def test_the_root_of_a_called_computation_wins_over_what_it_is_made_of() -> None:
    fused = [Hlo("parameter.1"), Hlo("sine.1", frame=1), Hlo("add.1", frame=2, operands=("sine.1",))]
    found = program({"fused": fused, "entry": [Hlo("fusion.1", calls=("fused",))]})
    assert one(found, "fusion.1") == (2, "called")


def test_a_copy_takes_the_stack_of_what_it_copies() -> None:
    assert one(program(TRAINING), "copy.1") == (3, "operand")


def test_a_copy_of_an_argument_takes_the_stack_of_its_user() -> None:
    entry = [Hlo("parameter.0"), Hlo("copy.1", operands=("parameter.0",)), Hlo("dot.1", 3, operands=("copy.1",))]
    assert one(program({"entry": entry}), "copy.1") == (3, "user")


def test_the_nearest_of_operands_and_users_wins() -> None:
    entry = [
        Hlo("dot.1", frame=1),
        Hlo("bitcast.1", operands=("dot.1",)),
        Hlo("copy.1", operands=("bitcast.1",)),
        Hlo("add.1", frame=2, operands=("copy.1",)),
    ]
    assert one(program({"entry": entry}), "copy.1") == (2, "user")


def test_the_search_leaves_a_loop_through_its_parameters_and_its_root() -> None:
    body = [Hlo("parameter.1"), Hlo("copy.1", operands=("parameter.1",))]
    into = [Hlo("dot.1", frame=1), Hlo("while.1", operands=("dot.1",), calls=("body",))]
    assert one(program({"body": body, "entry": into}), "copy.1") == (1, "operand")
    out = [Hlo("while.1", calls=("body",)), Hlo("dot.1", frame=2, operands=("while.1",))]
    assert one(program({"body": body, "entry": out}), "copy.1") == (2, "user")


def test_a_program_without_stacks_is_attributed_to_nothing() -> None:
    entry = [Hlo("dot.1"), Hlo("add.1", operands=("dot.1",))]
    assert one(program({"entry": entry}), "add.1") == (None, "none")


def test_an_instruction_that_the_program_lacks_is_attributed_to_nothing() -> None:
    assert one(program(TRAINING), "dot.99") == (None, "none")


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Random data flow through one called computation; any instruction may lack a stack."""

    def computation(title: str, calls: tuple[str, ...]) -> list[Hlo]:
        found: list[Hlo] = []
        for number in range(draw(st.integers(1, 6))):
            operands = tuple(sorted(draw(st.sets(st.sampled_from([h.name for h in found])))) if found else ())
            called = calls if draw(st.booleans()) else ()
            frame = draw(st.sampled_from([0, 0, 1, 2, 3, 4]))
            opcode = draw(st.sampled_from(["add", "parameter", "tuple"]))
            found.append(Hlo(f"{title}.{number}", frame, operands, called, opcode))
        return found

    return program({"inner": computation("inner", ()), "entry": computation("entry", ("inner",))})


@given(programs(), st.data())
def test_no_nanosecond_is_lost_or_counted_twice(found: Program, data: st.DataObject) -> None:
    instruction = st.sampled_from([*found.instructions, "unknown.1"]).map(lambda name: (found.program_id, name))
    known = st.one_of(instruction, st.just((None, None)), st.just((99, "other.1")))
    runs = data.draw(st.lists(st.tuples(known, st.integers(0, 10**12)), max_size=20))
    ops = [
        Op(
            rank=0,
            device=0,
            program_id=program_id,
            run_id=1,
            instruction=name,
            stream="s",
            kernel="k",
            start_ns=n,
            duration_ns=ns,
        )
        for n, ((program_id, name), ns) in enumerate(runs)
    ]
    raw_ns = sum(ns for _, ns in runs)
    tables = make_tables(Trace(ops=tuple(ops), programs={found.program_id: found}, warnings=()))
    time = sum_device_time(tables)
    assert time.total_ns == raw_ns
    assert sum(time.by_how.values()) == raw_ns
    assert sum(time.by_category.values()) == raw_ns
    assert sum(time.by_frame.values()) == raw_ns - time.by_how.get("none", 0)
    tree = build_tree(time, read_stacks(tables, user_code_test()))
    assert tree.total_ns == raw_ns == sum(child.total_ns for child in tree.children.values())


@given(programs())
def test_every_instruction_gets_one_whole_attribution(found: Program) -> None:
    attributions: list[Attribution] = attribute(found, found.instructions)
    assert [a.instruction for a in attributions] == list(found.instructions)
    assert {a.weight for a in attributions} == {1.0}
    assert all((a.frame_id is None) == (a.how == "none") for a in attributions)
