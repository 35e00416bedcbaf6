"""HLO modules as text, of old and of new XLA."""

from nightjar_ci.bisect.sensors.hlo_text import Instruction, read_instructions

NEW = """HloModule jit_step, is_scheduled=true

FileNames
1 "/work/test.py"
2 "/env/lib/python3.12/site-packages/flax/linear.py"

FunctionNames
1 "step"

FileLocations
1 {file_name_id=2 function_name_id=1 line=40 end_line=40 column=1 end_column=2}
2 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=1 end_column=2}

StackFrames
1 {file_location_id=2 parent_frame_id=1}
2 {file_location_id=1 parent_frame_id=2}


ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  ROOT %tanh.2 = f32[8]{0} tanh(%x), metadata={op_name="jit(step)/tanh" stack_frame_id=2}
}
"""
OLD = """HloModule jit_step

ENTRY main.4 {
  x = f32[8]{0} parameter(0)
  c = (f32[8]{0}, /*index=1*/s8[4]{0}) custom-call(x), custom_call_target="gemm", metadata={op_name="d" source_file="/work/test.py" source_line=3}
  ROOT f = f32[8]{0} fusion(x), kind=kLoop, calls=body, metadata={op_name="e" source_file="/work/test.py"}
}
"""  # noqa: E501


def test_a_line_is_that_of_the_users_code_not_of_a_library_it_calls() -> None:
    assert read_instructions(NEW) == [
        Instruction(name="x", kind="parameter", shape="f32[8]{0}", line=None),
        Instruction(name="tanh.2", kind="tanh", shape="f32[8]{0}", line="/work/test.py:7"),
    ]


def test_older_xla_writes_the_line_into_each_instruction() -> None:
    _, call, fusion = read_instructions(OLD)
    assert (call.kind, call.shape, call.line) == ("custom-call gemm", "(f32[8]{0}, s8[4]{0})", "/work/test.py:3")
    assert (fusion.kind, fusion.line) == ("fusion kLoop", "/work/test.py:0")


def test_frames_that_name_each_other_or_nothing_end() -> None:
    broken = NEW.replace("1 {file_location_id=2 parent_frame_id=1}", "1 {file_location_id=9 parent_frame_id=3}")
    assert read_instructions(broken)[1].line == "/env/lib/python3.12/site-packages/flax/linear.py:40"
    assert read_instructions("not HLO at all") == []
