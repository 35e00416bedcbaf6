import sys
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_profiling.analyses.stacks import read_stacks
from nightjar_profiling.attribution.attribute import Attribution, attribute
from nightjar_profiling.attribution.scopes import find_scopes
from nightjar_profiling.capture_folder.tables import make_table
from nightjar_profiling.capture_folder.usercode import user_code_test
from nightjar_profiling.hlo.hlo import Program, read_program
from nightjar_profiling.pipeline.ingest import make_tables
from nightjar_profiling.readers.raw import Raw
from nightjar_profiling.report.analyse import sum_device_time
from nightjar_profiling.report.flamegraph import build_tree
from tests.profiling.builders import TRAINING, Hlo, hlo_proto, program


def one(found: Program, name: str) -> tuple[int | None, str]:
    (attribution,) = [share for share in attribute(found, [name]) if share.root_weight]
    return attribution.frame_id, attribution.how


@pytest.mark.parametrize(
    ("name", "attributed"),
    [
        ("dot.1", (3, "own")),
        ("fusion.1", (3, "called")),
        ("copy.1", (3, "operand")),
        ("dot.99", (None, "none")),  # which the program lacks
    ],
)
def test_an_instruction_has_its_own_stack_or_that_of_what_it_calls_or_copies(
    name: str, attributed: tuple[int | None, str]
) -> None:
    assert one(program(TRAINING), name) == attributed


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
@pytest.mark.slow
def test_no_nanosecond_is_lost_or_counted_twice(found: Program, data: st.DataObject) -> None:
    instruction = st.sampled_from([*found.instructions, "unknown.1"]).map(lambda name: (found.program_id, name))
    known = st.one_of(instruction, st.just((None, None)), st.just((99, "other.1")))
    runs = data.draw(st.lists(st.tuples(known, st.integers(0, 10**12)), max_size=20))
    ops = [
        {"rank": 0, "device": 0, "program_id": program_id, "instruction": name, "start_ns": n, "duration_ns": ns}
        for n, ((program_id, name), ns) in enumerate(runs)
    ]
    raw_ns = sum(ns for _, ns in runs)
    tables = make_tables(Raw(tables={"ops": make_table("ops", ops)}, programs={found.program_id: found}))
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


@pytest.mark.parametrize(("name", "shares"), [("transpose(jvp())/dot_general", {1: 0.25, 2: 0.75}), ("psum", {1: 1.0})])
def test_a_combined_collective_is_divided_though_it_has_the_stack_of_one_part(
    name: str, shares: dict[int, float]
) -> None:
    first, *rest = [f"jit(step)/{layer}/dot_general" for layer in ("first", "rest", "rest", "rest")]
    parts = [Hlo("dot.0", 1, op_name=first), *(Hlo(f"dot.{n}", 2, op_name=op) for n, op in enumerate(rest, 1))]
    names = tuple(part.name for part in parts)
    whole = Hlo("all-reduce.1", opcode="all-reduce", frame=1, op_name=f"jit(step)/{name}", operands=names)
    whole_program = program({"entry": [*parts, whole]})
    found = attribute(whole_program, ["all-reduce.1"])
    assert {share.frame_id: share.weight for share in found} == shares
    scopes = {row["scope"]: row["weight"] for row in find_scopes(whole_program, found)}
    assert scopes == ({"first": 0.25, "rest": 0.75} if len(shares) == 2 else {"": 1.0})


def test_a_loop_a_conditional_and_a_custom_call_keep_their_line_whatever_they_call() -> None:
    found = program(
        {
            "then": [Hlo("dot.1", frame=3)],
            "else": [Hlo("add.1", frame=1)],
            "compare": [Hlo("lt.1", frame=1)],
            "entry": [
                Hlo("conditional.1", frame=2, calls=("then", "else")),
                Hlo("custom-call.1", frame=2, calls=("compare",)),
                Hlo("while.1", frame=2, calls=("then",)),
            ],
        }
    )
    for name in ("conditional.1", "custom-call.1", "while.1"):
        (one,) = attribute(found, [name])
        assert (one.frame_id, one.weight, one.root_weight, one.how) == (2, 1.0, 1.0, "own")
    assert [one.frame_id for one in attribute(found, ["dot.1", "add.1"])] == [3, 1]  # each branch its own


def make_chain(size: int) -> bytes:
    """A module of so many instructions in a row; only the first half has places in the source."""
    half = size // 2
    proto = hlo_proto({"entry": [Hlo("parameter.0", frame=1)]})
    computation, index = proto.hlo_module.computations[0], proto.hlo_module.stack_frame_index
    for parent in range(len(index.stack_frames), 100):  # as deep as stacks of JAX
        index.file_locations.add(file_name_id=1, function_name_id=1, line=1000 + parent)
        index.stack_frames.add(file_location_id=len(index.file_locations), parent_frame_id=parent)
    for n in range(1, size):
        one = computation.instructions.add(id=100 + n, name=f"copy.{n}", opcode="copy", operand_ids=[99 + n])
        if n < half and n % 4 == 0:
            one.metadata.stack_frame_id = 1 + n % 100
        elif n < half and n % 4 == 1:  # the form of older compilers
            one.metadata.source_file, one.metadata.source_line = f"/home/me/{n % 10}.py", n % 1000
    data: bytes = proto.SerializeToString()
    return data


def count_calls(size: int) -> int:
    """How many functions are called to read and attribute a chain of so many instructions."""
    data, calls = make_chain(size), 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        found = read_program(data, 7, "test")
        attribute(found, found.instructions)
    finally:
        sys.setprofile(None)
    return calls


def test_twice_the_instructions_take_twice_the_steps() -> None:
    assert count_calls(4_000) < 2.1 * count_calls(2_000)


def test_every_instruction_of_a_long_chain_has_the_nearest_line() -> None:
    size, half = 20_000, 10_000
    found = read_program(make_chain(size), 7, "test")
    assert found.frames[100].parent_id == 99
    shares = attribute(found, found.instructions)
    assert len(shares) == size
    assert [share.how for share in shares[4:8]] == ["own", "own", "operand", "user"]
    assert len({share.frame_id for share in shares[1:half:4]}) == 250  # lines, each of them many times
    assert (shares[44].frame_id, shares[43].frame_id) == (45, 45)
    line = found.frames[shares[777].frame_id or 0]
    assert (line.site.file, line.site.line, line.parent_id) == ("/home/me/7.py", 777, None)
    last = shares[half - 3]  # the nearest line to all that comes behind
    assert {(share.frame_id, share.how) for share in shares[half - 2 :]} == {(last.frame_id, "operand")}


@pytest.mark.parametrize(("frame", "root"), [(0, (2, "called")), (3, (3, "own"))])
def test_a_fusion_is_split_by_its_roofline_and_given_whole_to_its_root(frame: int, root: tuple[int, str]) -> None:
    """Of f32[2,3]: the sine reads 24 bytes and costs 6 * (1 + 8) / 10, the addition writes 24 and costs 6 / 10."""
    fused = [Hlo("parameter.1"), Hlo("sine.1", frame=1, operands=("parameter.1",)), Hlo("add.1", 2, ("sine.1",))]
    found = program({"fused": fused, "entry": [Hlo("fusion.1", frame=frame, calls=("fused",))]})
    shares = {
        (share.frame_id, share.how): (share.weight, share.root_weight) for share in attribute(found, ["fusion.1"])
    }
    expected = {root: (0.0, 1.0), (1, "called"): (29.4 / 54, 0.0)}
    expected[2, "called"] = (24.6 / 54, expected.get((2, "called"), (0.0, 0.0))[1])
    assert shares == {key: pytest.approx(weights) for key, weights in expected.items()}
