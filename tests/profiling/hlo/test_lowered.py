from pathlib import Path

import pytest

from nightjar_profiling.errors import InputError
from nightjar_profiling.hlo import lowered
from nightjar_profiling.hlo.lowered import Lowered, read_lowered, read_lowered_folders
from nightjar_profiling.protos import hlo_pb2
from tests.profiling.builders import Hlo, hlo_proto

P = Hlo("parameter.0")


def module(*entry: Hlo, **others: list[Hlo]) -> hlo_pb2.HloProto:
    proto = hlo_proto({**others, "main": entry})
    proto.hlo_module.entry_computation_id = len(others) + 1
    return proto


def read(*entry: Hlo, **others: list[Hlo]) -> Lowered:
    program = read_lowered(module(*entry, **others).SerializeToString(), "test")
    assert program is not None
    return program


def op(name: str, *operands: str, frame: int = 2, op_name: str = "", calls: tuple[str, ...] = ()) -> Hlo:
    return Hlo(name, frame=frame, operands=operands, op_name=op_name or f"jit(step)/{name}", calls=calls)


def values(program: Lowered) -> dict[str, int]:
    return {operation.op_name: operation.value for operation in program.operations}


def test_the_same_operation_on_the_same_values_has_one_value() -> None:
    program = read(
        P,
        op("sine.1", "parameter.0"),
        op("sine.2", "parameter.0", frame=3),
        op("tanh.1", "sine.1"),
        op("tanh.2", "sine.2"),
        op("tanh.3", "tanh.1"),
        op("add.1", "tanh.2", "tanh.3"),
    )
    of = values(program)
    assert of["jit(step)/sine.1"] == of["jit(step)/sine.2"]
    assert of["jit(step)/tanh.1"] == of["jit(step)/tanh.2"] != of["jit(step)/tanh.3"]


def test_operations_that_no_result_needs_are_left_out() -> None:
    program = read(P, op("sine.1", "parameter.0"), op("sine.2", "parameter.0"), op("add.1", "sine.1", "sine.1"))
    assert list(values(program)) == ["jit(step)/sine.1", "jit(step)/add.1"]


def test_an_attribute_makes_another_value() -> None:
    proto = module(P, op("dot.1", "parameter.0"), op("dot.2", "parameter.0"), op("add.1", "dot.1", "dot.2"))
    proto.hlo_module.computations[0].instructions[2].dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    program = read_lowered(proto.SerializeToString(), "test")
    assert program is not None
    assert values(program)["jit(step)/dot.1"] != values(program)["jit(step)/dot.2"]


def test_calls_are_inlined_under_their_name_and_stack() -> None:
    inner = [Hlo("parameter.1"), Hlo("sine.9", frame=3, operands=("parameter.1",), op_name="sin")]
    program = read(
        P,
        op("call.1", "parameter.0", frame=1, op_name="jit(step)/jit(g)", calls=("g",)),
        op("call.2", "parameter.0", frame=2, op_name="jit(step)/jit(g)", calls=("g",)),
        op("add.1", "call.1", "call.2"),
        g=inner,
    )
    first, second, _ = program.operations
    assert first.op_name == second.op_name == "jit(step)/jit(g)/sin"
    assert first.value == second.value
    assert [site.line for site in first.stack] == [site.line for site in second.stack] == [9, 4, 422]


def test_a_loops_body_has_values_of_its_own() -> None:
    body = [Hlo("parameter.1"), op("sine.9", "parameter.1", op_name="body/sin")]
    program = read(
        P,
        op("sine.1", "parameter.0"),
        op("while.1", "sine.1", calls=("body",)),
        op("while.2", "while.1", calls=("body",)),
        body=body,
    )
    assert list(values(program)) == ["jit(step)/sine.1", "body/sin"]
    assert len(set(values(program).values())) == 2


def test_a_program_that_grows_too_large_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered, "MOST_OPERATIONS", 2)
    assert read_lowered(module(P, op("sine.1", "parameter.0"), op("sine.2", "sine.1")).SerializeToString(), "t") is None


def test_a_damaged_program_is_refused_alone_and_left_out_of_a_folder(tmp_path: Path) -> None:
    circle = module(P, op("call.1", "parameter.0", calls=("main",)))
    for data in (b"\xff\xff", circle.SerializeToString()):
        with pytest.raises(InputError, match="test: "):
            read_lowered(data, "test")
    folder = tmp_path / "rank0000.lowered"
    folder.mkdir()
    good = module(P, op("sine.1", "parameter.0")).SerializeToString()
    for number, data in enumerate([b"\xff", good, good]):
        (folder / f"{number}.hlo.pb").write_bytes(data)
    assert [program.name for program in read_lowered_folders(tmp_path)] == ["jit_step"]
    assert list(read_lowered_folders(tmp_path, {"jit_other"})) == []
