"""Modules and phases: of name stacks as JAX writes them, of fusions that hold several, and of Python classes."""

from dataclasses import replace

import pytest

from nightjar_profiling.attribution.attribute import Attribution, attribute
from nightjar_profiling.attribution.scopes import find_scopes, split_scope
from nightjar_profiling.hlo.frames import Frame
from nightjar_profiling.hlo.hlo import Instruction, Program
from nightjar_profiling.hlo.joined import Site


@pytest.mark.parametrize(
    ("op_name", "path", "phase"),
    [
        ("jit(step)/jvp(M)/head/out/dot_general", "M/head/out", "forward"),  # Linen, flax 0.12
        ("jit(step)/transpose(jvp(M))/head/out/dot_general", "M/head/out", "backward"),
        ("jit(step)/transpose(jvp(M))/jvp(M)/checkpoint/up/transpose", "M/up", "backward"),
        ("jit(step)/transpose(jvp(M))/checkpoint/rematted_computation/up/dot_general", "M/up", "remat"),
        ("jit(f)/jvp(block0)/while/body/closed_call/tanh", "block0", "forward"),
        ("jit(f)/vmap(transpose(jvp(a/b)))/mul;jit(f)/other/add", "a/b", "backward"),
        ("jit(step)/jvp()/reduce_sum", "", "forward"),
        ("jit(step)/jit(_where)/select_n", "", "other"),
        ("p['params']['out']['bias']", "", "other"),
        ("", "", "other"),
        ("a)/(b", "", "other"),
    ],
)
def test_a_name_stack_gives_module_and_phase(op_name: str, path: str, phase: str) -> None:
    scope, found = split_scope(op_name)
    if op_name != "a)/(b":
        assert "/".join(scope) == path
    assert found == phase


def make(name: str, opcode: str, op_name: str, **more: object) -> Instruction:
    values = {"kind": "", "computation": "main", "frame_id": None, "bytes": 400, "operands": (), "called": ()}
    return Instruction(name=name, opcode=opcode, op_name=op_name, elements=100, **{**values, **more})  # type: ignore[arg-type]


def program_of(parts: list[Instruction], frames: dict[int, Frame], **computations: tuple[str, ...]) -> Program:
    known = {part.name: part for part in parts}
    about = {"program_id": 1, "name": "jit_f", "fingerprint": "", "instructions": known, "frames": frames}
    roots = {name: listed[-1] for name, listed in computations.items()}
    return Program(**about, computations=computations, roots=roots)  # type: ignore[arg-type]


def test_a_fusion_is_split_over_its_modules_and_weights_sum_to_one() -> None:
    inner = [
        make("add.1", "add", "jit(f)/jvp(a)/add", computation="fused", flops=100.0),
        make("nameless.1", "convert", "", computation="fused", operands=("add.1",), flops=100.0),  # counts for nobody
        make(
            "mul.1", "multiply", "jit(f)/transpose(jvp(b))/mul", computation="fused", operands=("add.1",), flops=100.0
        ),
    ]
    fusion = make("fusion", "fusion", "jit(f)/transpose(jvp(b))/mul", called=("fused",))
    program = program_of([*inner, fusion], {}, fused=("add.1", "nameless.1", "mul.1"), main=("fusion",))
    rows = find_scopes(program, attribute(program, ["fusion", "not there"]))
    assert {(row["scope"], row["phase"]) for row in rows} == {("a", "forward"), ("b", "backward")}
    assert sum(row["weight"] for row in rows) == pytest.approx(1)
    weights = {row["scope"]: row["weight"] for row in rows}
    assert 0 < weights["a"] < weights["b"]  # which also writes the result


def test_classes_on_the_stack_stand_in_for_scopes_and_an_optimizer_is_told() -> None:
    functions = [
        ("train.py", "step"),
        ("model.py", "Model.__call__"),
        ("linear.py", "Linear.__call__"),
        ("/optax/a.py", "update"),
    ]
    frames = {
        number: Frame(frame_id=number, parent_id=number - 1 or None, site=Site(file, 1, function))
        for number, (file, function) in enumerate(functions, start=1)
    }
    frames[4] = Frame(frame_id=4, parent_id=1, site=Site("/optax/a.py", 1, "update"))
    parts = [
        make("dot", "dot", "jit(f)/jvp()/dot_general", frame_id=3),
        make("neg", "negate", "jit(f)/transpose(jvp())/neg", frame_id=3),
        make("sub", "subtract", "jit(f)/sub", frame_id=4),
    ]
    program = program_of(parts, frames, main=("dot", "neg", "sub"))
    rows = {
        row["instruction"]: (row["scope"], row["phase"])
        for row in find_scopes(program, attribute(program, ["dot", "neg", "sub"]))
    }
    assert rows == {"dot": ("Model/Linear", "forward"), "neg": ("Model/Linear", "backward"), "sub": ("", "optimizer")}
    program.instructions["neg"] = make("neg", "copy", "", frame_id=None)
    inferred = Attribution(program_id=1, instruction="neg", frame_id=3, weight=1.0, root_weight=1.0, how="operand")
    assert [(row["scope"], row["phase"]) for row in find_scopes(program, [inferred])] == [("Model/Linear", "forward")]
    passed = replace(inferred, how="passed")
    assert [row["scope"] for row in find_scopes(program, [passed])] == ["(arguments returned unchanged)"]
