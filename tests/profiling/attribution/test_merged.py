from nightjar_profiling.attribution.merged import choose_lowered, find_merged, find_origins, merged_rows
from nightjar_profiling.hlo.frames import FrameIndex
from nightjar_profiling.hlo.hlo import Program, read_program
from nightjar_profiling.hlo.lowered import Lowered, read_lowered
from tests.profiling.builders import Hlo, hlo_proto
from tests.profiling.hlo.test_lowered import P, module, read


def op(name: str, *operands: str, frame: int = 2, op_name: str = "") -> Hlo:
    return Hlo(name, frame=frame, operands=operands, op_name=op_name or name.split(".")[0])


BEFORE = (
    P,
    op("sine.1", "parameter.0", frame=2),
    op("sine.2", "parameter.0", frame=3),
    op("add.1", "sine.1", "sine.2", frame=1),
)


def optimize(*entry: Hlo, **others: list[Hlo]) -> Program:
    return read_program(hlo_proto({**others, "main": entry}).SerializeToString(), 7, "test")


def merged(program: Program, lowered: Lowered, *names: str) -> list[tuple[str, int, int, int]]:
    rows = find_merged(program, lowered, names, FrameIndex(program.frames))
    return [(row.instruction, row.kept_frame_id, row.frame_id, row.operations) for row in rows]


def test_an_instruction_stands_for_an_equal_operation_that_is_left_nowhere() -> None:
    program = optimize(P, op("sine.7", "parameter.0", frame=2), op("add.7", "sine.7", "sine.7", frame=1))
    assert merged(program, read(*BEFORE), "sine.7", "add.7") == [("sine.7", 2, 3, 1)]


def test_nothing_is_merged_where_both_operations_are_left() -> None:
    program = optimize(*BEFORE)
    assert merged(program, read(*BEFORE), "sine.1", "sine.2", "add.1") == []


def test_a_fusion_stands_for_what_its_operations_stand_for() -> None:
    fused = [Hlo("parameter.1"), op("sine.8", "parameter.1", frame=2), op("add.8", "sine.8", "sine.8", frame=1)]
    program = optimize(P, Hlo("fusion.1", operands=("parameter.0",), calls=("fused",), kind="kLoop"), fused=fused)
    assert merged(program, read(*BEFORE), "fusion.1") == [("fusion.1", 2, 3, 1)]


def test_operations_of_one_line_are_counted() -> None:
    entry = [P, *(op(f"sine.{n}", "parameter.0") for n in (1, 2, 3)), op("add.1", "sine.1", "sine.2")]
    entry.append(op("add.2", "add.1", "sine.3"))
    program = optimize(P, op("sine.7", "parameter.0"), op("add.7", "sine.7", "sine.7"))
    assert merged(program, read(*entry), "sine.7") == [("sine.7", 2, 2, 2)]


def test_nothing_is_said_where_a_line_stands_for_different_values() -> None:
    """Of three rounds of a Python loop two are equal: which of the two instructions stands for both is not known."""
    entry = [
        P,
        op("sine.1", "parameter.0"),
        op("sine.2", "parameter.0"),
        op("add.1", "sine.1", "sine.2", frame=1),
        op("sine.3", "add.1"),
    ]
    program = optimize(P, op("sine.7", "parameter.0"), op("add.7", "sine.7", "sine.7", frame=1), op("sine.8", "add.7"))
    assert merged(program, read(*entry), "sine.7", "sine.8") == []


def test_a_stack_that_the_optimized_program_lost_gets_frames() -> None:
    proto = hlo_proto({"main": [P, op("sine.7", "parameter.0", frame=2), op("add.7", "sine.7", "sine.7", frame=1)]})
    del proto.hlo_module.stack_frame_index.stack_frames[2:]  # those of frame 3, which no instruction has any more
    program = read_program(proto.SerializeToString(), 7, "test")
    origin = find_origins({7: program}, {7: ["sine.7", "add.7"]}, [read(*BEFORE)])[7]
    (row,) = merged_rows({7: origin})
    frame = origin.program.frames[int(row["frame_id"])]
    assert (frame.parent_id, frame.site.line, frame.site.function) == (2, 422, "Linear.__call__")
    assert row["program_id"] == 7


def test_a_program_before_is_taken_by_name_arguments_and_operations() -> None:
    program = optimize(P, op("sine.7", "parameter.0", frame=2))
    right, other = read(*BEFORE), read(P, op("cosine.1", "parameter.0"))
    assert choose_lowered(program, [other, right]) is right
    assert choose_lowered(program, [other]) is None
    renamed = module(*BEFORE)
    renamed.hlo_module.name = "jit_other"
    assert choose_lowered(program, [x for x in [read_lowered(renamed.SerializeToString(), "t")] if x]) is None
    wider = module(*BEFORE)
    wider.hlo_module.computations[0].instructions[0].shape.dimensions[0] = 9
    assert choose_lowered(program, [x for x in [read_lowered(wider.SerializeToString(), "t")] if x]) is None


def test_two_programs_that_fit_equally_and_differ_are_both_left_alone() -> None:
    program = optimize(P, op("sine.7", "parameter.0", frame=2))
    twin = read(P, op("sine.1", "parameter.0", frame=2), op("tanh.1", "sine.1"))
    assert choose_lowered(program, [read(*BEFORE), twin]) is None
    assert choose_lowered(program, [twin, twin]) is twin


def test_a_partitioned_program_gets_whole_shapes_from_before() -> None:
    proto = hlo_proto({"main": [P, op("sine.7", "parameter.0", frame=2)]})
    proto.hlo_module.device_assignment.computation_count = 2
    for instruction in proto.hlo_module.computations[0].instructions:
        instruction.shape.dimensions[:] = [1, 3]
    program = read_program(proto.SerializeToString(), 7, "test")
    origin = find_origins({7: program}, {7: ["sine.7"]}, [read(P, op("sine.1", "parameter.0", frame=2))])[7]
    assert origin.whole_shapes == {"sine.7": "f32[2,3]"}


def test_equal_operations_of_several_layers_are_counted_over_all_of_them() -> None:
    """Two layers in a Python loop: in each, a sine of line 2 and one of line 3 are one value."""
    entry = [P, op("sine.1", "parameter.0"), op("sine.2", "parameter.0", frame=3), op("add.1", "sine.1", "sine.2")]
    entry += [op("sine.3", "add.1"), op("sine.4", "add.1", frame=3), op("add.2", "sine.3", "sine.4")]
    program = optimize(P, op("sine.7", "parameter.0"), op("add.7", "sine.7", "sine.7"), op("sine.8", "add.7"))
    assert merged(program, read(*entry), "sine.7", "sine.8") == [("sine.7", 2, 3, 2), ("sine.8", 2, 3, 2)]
