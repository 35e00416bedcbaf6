from dataclasses import replace

import pytest

from nightjar_profiling.errors import InputError
from nightjar_profiling.hlo.hlo import Program, read_program
from nightjar_profiling.hlo.hlo_rows import find_main_work, program_rows
from nightjar_profiling.hlo.shapes import count_bytes
from nightjar_profiling.protos import hlo_pb2
from tests.profiling.builders import TRAINING, Hlo, hlo_proto, program


def test_instructions_frames_and_edges_are_read() -> None:
    found = program(TRAINING)
    fusion = found.instructions["fusion.1"]
    assert (fusion.category, fusion.operands, fusion.called) == ("fusion:kLoop", ("dot.1",), ("fused",))
    assert fusion.frame_id is None
    assert found.frames[3].parent_id == 2
    assert found.frames[1].parent_id is None
    assert found.roots["entry"] == "add.1"
    assert list(found.below("fusion.1")) == ["parameter.1", "multiply.1"]


def test_rows_carry_the_program_and_the_bytes_of_the_output() -> None:
    rows = program_rows(program(TRAINING))
    dot = next(row for row in rows["instructions"] if row["name"] == "dot.1")
    assert (dot["program_id"], dot["bytes"], dot["frame_id"], dot["computation"]) == (7, 24, 3, "entry")
    assert [row["frame_id"] for row in rows["frames"]] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("element_type", "dimensions", "size"),
    [(11, [2, 3], 24), (16, [4], 8), (21, [3], 2), (1, [], 1), (17, [], 0), (18, [2], 32), (11, [0, 5], 0)],
)
def test_bytes_of_a_shape(element_type: int, dimensions: list[int], size: int) -> None:
    shape = hlo_pb2.Shape(element_type=element_type, dimensions=dimensions)
    assert count_bytes(shape) == size
    assert count_bytes(hlo_pb2.Shape(element_type=13, tuple_shapes=[shape, shape])) == 2 * size


def test_a_fingerprint_depends_on_the_computation_and_not_on_its_names() -> None:
    moved = {"entry": [Hlo("dot.1", frame=1)]}
    assert program({"entry": [Hlo("dot.1", frame=3)]}).fingerprint == program(moved).fingerprint
    assert program({"entry": [Hlo("add.1", frame=1)]}).fingerprint != program(moved).fingerprint


def test_the_compilers_fingerprint_takes_precedence() -> None:
    proto = hlo_proto(TRAINING)
    proto.hlo_module.frontend_attributes.map["fingerprint_before_lhs"] = "cafe"
    assert read_program(proto.SerializeToString(), 1, "test").fingerprint == "cafe"


def test_a_dangling_operand_is_named() -> None:
    proto = hlo_proto(TRAINING)
    proto.hlo_module.computations[1].instructions[1].operand_ids.append(4711)
    with pytest.raises(InputError, match="4711"):
        read_program(proto.SerializeToString(), 1, "test")


def test_a_dangling_reference_of_a_stack_frame_is_named() -> None:
    proto = hlo_proto(TRAINING)
    proto.hlo_module.stack_frame_index.file_locations[2].file_name_id = 0
    with pytest.raises(InputError, match="stack frame refers"):
        read_program(proto.SerializeToString(), 1, "test")


def test_a_program_without_frames_has_instructions_without_stacks() -> None:
    proto = hlo_proto(TRAINING)
    proto.hlo_module.ClearField("stack_frame_index")
    proto.hlo_module.schedule.sequences[99].instruction_ids.append(1)  # of no computation that it has
    found = read_program(proto.SerializeToString(), 1, "test")
    assert ({one.frame_id for one in found.instructions.values()}, found.schedule) == ({None}, {})


def test_instructions_with_only_a_source_line_have_stacks_of_one_frame() -> None:
    proto = hlo_proto(TRAINING)
    proto.hlo_module.ClearField("stack_frame_index")
    for computation in proto.hlo_module.computations:
        for one in computation.instructions:
            if one.opcode in ("dot", "add"):
                one.metadata.source_file, one.metadata.source_line = "/home/me/old.py", 7
    found = read_program(proto.SerializeToString(), 1, "test")
    (frame,) = found.frames.values()
    assert (frame.site.file, frame.site.line, frame.parent_id) == ("/home/me/old.py", 7, None)
    assert {one.name for one in found.instructions.values() if one.frame_id == frame.frame_id} == {"dot.1", "add.1"}


def test_a_stack_takes_precedence_over_a_source_line() -> None:
    proto = hlo_proto(TRAINING)
    dot = proto.hlo_module.computations[1].instructions[1]
    dot.metadata.source_file, dot.metadata.source_line = "/home/me/old.py", 7
    assert read_program(proto.SerializeToString(), 1, "test").instructions["dot.1"].frame_id == 3


def test_stacks_end_at_cycles_and_missing_parents() -> None:
    proto = hlo_proto(TRAINING)
    frames = proto.hlo_module.stack_frame_index.stack_frames
    frames[0].parent_frame_id, frames[3].parent_frame_id = 3, 99
    found = read_program(proto.SerializeToString(), 1, "test").frames
    for frame in found.values():
        seen = []
        here: int | None = frame.frame_id
        while here is not None:
            seen.append(here)
            here = found[here].parent_id
        assert len(seen) == len(set(seen))
    assert found[4].parent_id is None


def test_an_operand_outside_its_computation_is_named() -> None:
    proto = hlo_proto(TRAINING)
    inner, outer = proto.hlo_module.computations[0], proto.hlo_module.computations[-1]
    user = next(instruction for instruction in inner.instructions if instruction.operand_ids)
    user.operand_ids[0] = outer.instructions[-1].id
    with pytest.raises(InputError, match=f"an operand of '{user.name}', is not in '{inner.name}'"):
        read_program(proto.SerializeToString(), 7, "test")


def test_a_root_whose_number_stands_twice_is_named() -> None:
    """Found by fuzzing: a number of two instructions led out of the computation, and the costs had no such name."""
    proto = hlo_proto(TRAINING)
    inner, outer = proto.hlo_module.computations[0], proto.hlo_module.computations[-1]
    twin = outer.instructions.add()
    twin.CopyFrom(outer.instructions[0])
    twin.id, twin.name = inner.root_id, "twin.1"
    with pytest.raises(InputError, match=f"'twin.1', the root of computation '{inner.name}', is not in it"):
        read_program(proto.SerializeToString(), 7, "test")


def fused(*opcodes: str, flops: dict[str, float], elements: dict[str, int]) -> Program:
    """A fusion of a chain of instructions, with these flops and elements of each."""
    names = ("parameter.1", *(f"{opcode}.1" for opcode in opcodes))
    inside = [Hlo(name, operands=names[max(0, n - 1) : n]) for n, name in enumerate(names)]
    found = program({"fused": inside, "entry": [Hlo("p.0"), Hlo("fusion.1", operands=("p.0",), calls=("fused",))]})
    sized = {
        name: replace(one, flops=flops.get(one.opcode, 0.0), elements=elements.get(one.opcode, one.elements))
        for name, one in found.instructions.items()
    }
    return replace(found, instructions=sized)


@pytest.mark.parametrize(
    ("opcodes", "flops", "elements", "work"),
    [
        (
            ("multiply", "reduce", "sqrt"),
            {"multiply": 2e6, "reduce": 2e6},
            {"multiply": 2_000_000, "fusion": 2_000},
            "reduce",
        ),
        (("reduce", "broadcast"), {"reduce": 2e6}, {"parameter": 2_000_000, "fusion": 2_000_000}, None),
        (("dot", "add"), {"dot": 1e6, "add": 10}, {}, "dot"),
        (("dot", "reduce"), {"dot": 1e6, "reduce": 1e3}, {"dot": 1_000, "fusion": 1}, "dot"),
        (("dot", "tanh"), {"dot": 10, "tanh": 1e6}, {}, None),
        (("convolution",), {"convolution": 1e6}, {}, "convolution"),
        (("multiply", "add"), {"multiply": 6e4, "add": 6e4}, {"fusion": 100}, None),
    ],
)
def test_a_fusion_does_mostly_what_it_holds(
    opcodes: tuple[str, ...], flops: dict[str, float], elements: dict[str, int], work: str | None
) -> None:
    found = fused(*opcodes, flops=flops, elements=elements)
    assert find_main_work(found, found.instructions["fusion.1"]) == work


def test_what_is_no_fusion_has_no_main_work() -> None:
    found = program({"entry": [Hlo("dot.1")]})
    assert find_main_work(found, found.instructions["dot.1"]) is None
