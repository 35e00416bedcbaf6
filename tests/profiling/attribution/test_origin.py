"""What the compiler made for an operation is that operation's where the program says so, else an inference."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from nightjar_profiling.hlo.hlo import Program, read_program
from nightjar_profiling.protos import hlo_pb2
from tests.profiling.attribution.test_attribute import one
from tests.profiling.builders import Hlo, hlo_proto, program
from tests.profiling.hlo.test_hlo_cost import compiled


def program_of(function: Callable[..., Any], *arguments: Any) -> Program:
    _, proto = compiled(function, *arguments)
    return read_program(proto.SerializeToString(), 7, "test")


CONVOLUTION = "jit(step)/transpose(jvp())/conv_general_dilated"


def rewritten(*readers: Hlo, opcode: str = "convolution") -> Program:
    """A convolution without a stack, of what an activation made, and what reads it."""
    return program({"entry": [Hlo("tanh.1", frame=1), Hlo(f"{opcode}.1", operands=("tanh.1",)), *readers]})


def test_a_convolution_in_another_layout_is_the_one_whose_transposition_puts_it_back() -> None:
    back = Hlo("transpose.1", frame=3, operands=("convolution.1",), op_name=CONVOLUTION)
    assert one(rewritten(back), "convolution.1") == (3, "layout")
    through = Hlo("copy.1", operands=("convolution.1",)), Hlo("bitcast.1", 3, operands=("copy.1",), op_name=CONVOLUTION)
    assert one(rewritten(*through), "convolution.1") == (3, "layout")


def test_the_transposition_may_be_fused_into_what_reads_it_and_the_convolution_into_a_kernel() -> None:
    update = [Hlo("parameter.2"), Hlo("transpose.1", 3, operands=("parameter.2",), op_name=CONVOLUTION)]
    found = program(
        {
            "kernel": [Hlo("parameter.1"), Hlo("convolution.1", operands=("parameter.1",))],
            "update": [*update, Hlo("multiply.1", 2, operands=("transpose.1",))],
            "entry": [
                Hlo("tanh.1", frame=1),
                Hlo("fusion.1", operands=("tanh.1",), calls=("kernel",)),
                Hlo("fusion.2", frame=2, operands=("fusion.1",), calls=("update",)),
            ],
        }
    )
    assert one(found, "fusion.1") == (3, "layout")


@pytest.mark.parametrize(
    "readers",
    [
        [Hlo("transpose.1", frame=3, operands=("convolution.1",), op_name="jit(step)/transpose")],  # the user's own
        [Hlo("add.1", frame=3, operands=("convolution.1",), op_name=CONVOLUTION)],  # no transposition
        [Hlo(f"copy.{n}", frame=n, operands=("convolution.1",), op_name=CONVOLUTION) for n in (2, 3)],  # of which?
    ],
    ids=["of another operation", "arithmetic", "of two stacks"],
)
def test_what_does_not_say_so_is_an_inference(readers: list[Hlo]) -> None:
    assert one(rewritten(*readers), "convolution.1") == (1, "operand")


def test_a_product_is_not_made_for_a_convolution() -> None:
    back = Hlo("transpose.1", frame=3, operands=("dot.1",), op_name=CONVOLUTION)
    assert one(rewritten(back, opcode="dot"), "dot.1") == (1, "operand")


def moved(*readers: Hlo, operation: Hlo | None = None) -> Program:
    """A convolution in another layout, an operand of which a kernel puts into that order."""
    found = operation or Hlo("convolution.1", operands=("fusion.1",))
    back = Hlo("transpose.1", frame=3, operands=("convolution.1",), op_name=CONVOLUTION)
    kernel = [
        Hlo("parameter.1"),
        Hlo("transpose.2", operands=("parameter.1",)),
        Hlo("copy.2", operands=("transpose.2",)),
    ]
    move = Hlo("fusion.1", operands=("tanh.1",), calls=("kernel",))
    return program({"kernel": kernel, "entry": [Hlo("tanh.1", frame=1), move, found, back, *readers]})


def test_what_puts_an_operand_into_the_order_of_a_convolution_in_another_layout_is_the_convolutions() -> None:
    assert one(moved(), "fusion.1") == (3, "layout")


@pytest.mark.parametrize(
    "program_of",
    [
        moved(Hlo("add.1", frame=2, operands=("fusion.1",))),
        moved(Hlo("add.1", operands=("fusion.1",))),
        moved(operation=Hlo("convolution.1", frame=3, operands=("fusion.1",))),
        moved(operation=Hlo("convolution.1", operands=("tanh.1",))),
    ],
    ids=["read by another", "read by another without a stack", "of a convolution as it was", "read by nobody"],
)
def test_a_move_for_another_reader_is_an_inference(program_of: Program) -> None:
    assert one(program_of, "fusion.1")[1] in ("operand", "user")


def test_what_computes_on_the_way_to_a_convolution_is_no_move() -> None:
    found = program(
        {
            "kernel": [Hlo("parameter.1"), Hlo("negate.1", operands=("parameter.1",))],
            "entry": [
                Hlo("tanh.1", frame=1),
                Hlo("fusion.1", operands=("tanh.1",), calls=("kernel",)),
                Hlo("convolution.1", operands=("fusion.1",)),
                Hlo("transpose.1", frame=3, operands=("convolution.1",), op_name=CONVOLUTION),
            ],
        }
    )
    assert one(found, "fusion.1") == (1, "operand")


def loop(frame: int = 2, memory: int = 0) -> Program:
    body = [
        Hlo("parameter.1"),
        Hlo("get-tuple-element.1", operands=("parameter.1",)),
        Hlo("copy.1", operands=("get-tuple-element.1",), memory=memory),
        Hlo("add.1", frame=3, operands=("copy.1",)),
        Hlo("copy.2", operands=("add.1",), memory=memory),
        Hlo("tuple.1", operands=("copy.2",)),
    ]
    entry = [
        Hlo("sine.1", frame=1),
        Hlo("copy.3", operands=("sine.1",), memory=memory),
        Hlo("tuple.2", operands=("copy.3",)),
        Hlo("while.1", frame=frame, operands=("tuple.2",), calls=("body",)),
    ]
    return program({"body": body, "entry": entry})


@pytest.mark.parametrize("name", ["copy.1", "copy.2", "copy.3"])
def test_a_copy_of_what_a_loop_carries_is_the_loops(name: str) -> None:
    assert one(loop(), name) == (2, "carried")


@pytest.mark.parametrize(("name", "expected"), [("copy.1", 3), ("copy.2", 3), ("copy.3", 1)])
def test_a_copy_into_another_layout_or_of_a_loop_without_a_stack_is_an_inference(name: str, expected: int) -> None:
    for found in (loop(memory=1), loop(frame=0)):
        frame_id, how = one(found, name)
        assert frame_id == expected
        assert how in ("operand", "user")


def test_the_gradient_of_a_convolution_that_xla_writes_anew_is_the_convolutions() -> None:
    def loss(kernel: jax.Array, image: jax.Array) -> jax.Array:
        hidden = jax.lax.conv_general_dilated(
            jnp.tanh(image), kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.sum(hidden**2)

    arguments = jnp.ones((3, 3, 16, 16)), jnp.ones((8, 8, 8, 16))
    found = program_of(jax.grad(loss), *arguments)
    convolutions = [one for one in found.instructions.values() if one.opcode == "convolution"]
    bare = [one.name for one in convolutions if one.frame_id is None]
    assert bare, "XLA keeps the metadata now: the rule is not needed on a CPU"
    for name in bare:
        frame_id, how = one(found, name)
        assert how == "layout"
        assert frame_id is not None
        assert found.frames[frame_id].site.function.endswith("loss")


def passing(name: str, *more: Hlo) -> Program:
    """A program that returns a parameter untouched, beside what `loss` (frame 2, called by frame 1) computed."""
    entry = [Hlo("parameter.1"), Hlo("tanh.1", frame=3, operands=("parameter.1",))]
    copies = [Hlo("copy.1", operands=("parameter.1",)), *more]
    entry += [*copies, Hlo("tuple.1", operands=("tanh.1", copies[-1].name))]
    found = hlo_proto({"entry": entry}, name=name)
    return read_program(found.SerializeToString(), 7, "test")


def test_a_copy_of_what_a_program_returns_untouched_belongs_to_the_call() -> None:
    assert one(passing("jit_loss"), "copy.1") == (1, "passed")
    assert one(passing("jit_loss", Hlo("bitcast.1", operands=("copy.1",))), "copy.1") == (1, "passed")


def test_a_copy_belongs_to_no_call_that_the_program_does_not_tell() -> None:
    assert one(passing("jit_other"), "copy.1") == (None, "none")


def test_a_copy_that_is_computed_with_is_not_passed_through() -> None:
    used = passing("jit_loss", Hlo("negate.1", operands=("copy.1",)))
    assert one(used, "copy.1") == (None, "none")


@pytest.fixture
def whole_stacks() -> Iterator[None]:
    """Stacks as a user's programs have them: the tests of models keep theirs short in this process."""
    settings: Any = jax.config
    before = settings.jax_traceback_in_locations_limit
    settings.update("jax_traceback_in_locations_limit", 10)
    yield
    settings.update("jax_traceback_in_locations_limit", before)


@pytest.mark.usefixtures("whole_stacks")
def test_the_copies_of_untouched_parameters_of_nnx_jit_are_the_calls() -> None:
    nnx = pytest.importorskip("flax.nnx", reason="Flax is not installed")
    layer = nnx.Linear(4, 4, rngs=nnx.Rngs(0))

    def forward(layer: object, x: jax.Array) -> jax.Array:
        return layer(x)  # type: ignore[operator, no-any-return]

    made = nnx.jit(forward).lower(layer, jnp.ones((2, 4))).compile()
    proto = hlo_pb2.HloProto()
    (module,) = made.compiled.runtime_executable().hlo_modules()
    proto.hlo_module.ParseFromString(module.as_serialized_hlo_module_proto())
    found = read_program(proto.SerializeToString(), 7, "test")
    copies = [name for name, instruction in found.instructions.items() if instruction.opcode == "copy"]
    assert copies
    for name in copies:
        frame_id, how = one(found, name)
        assert how == "passed"
        frame = found.frames[frame_id or 0]
        while frame.parent_id is not None and frame.site.file != __file__:
            frame = found.frames[frame.parent_id]
        assert frame.site.function == "test_the_copies_of_untouched_parameters_of_nnx_jit_are_the_calls"


def test_only_a_copy_in_the_program_itself_is_passed_through() -> None:
    """Neither what computes, nor a copy of a parameter in a computation that another program part calls."""
    assert one(passing("jit_loss", Hlo("negate.1", operands=("parameter.1",))), "negate.1") == (None, "none")
    inner = [Hlo("parameter.2"), Hlo("copy.2", operands=("parameter.2",))]
    found = hlo_proto({"inner": inner, "entry": [Hlo("tanh.1", frame=3), Hlo("call.1", calls=("inner",))]}, "jit_loss")
    assert one(read_program(found.SerializeToString(), 7, "test"), "copy.2") == (None, "none")
