"""Which line makes two answers differ: planted differences, and programs and environments without any."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nightjar_models.errors import InputError, ToolError
from nightjar_models.explain.environments import PACKAGE, Other, Request, explain_environments, parse_other
from nightjar_models.explain.judge import MOST_NUMERICS, MOST_ROUNDINGS, Difference, _is_wrong, explain, run_here
from nightjar_models.explain.judge import compare as compare_numbers
from nightjar_models.explain.lockstep import judge_operation
from nightjar_models.explain.program import trace, trace_function
from nightjar_models.explain.record import Operation, digest_value, is_undefined, list_constants, record
from tests.models.conftest import SMALL, SMALL_OPTIONS, Command
from tests.models.explain.programs import KINDS
from tests.stand_ins import put_on_path, write_programs

FILE = Path(__file__).with_name("programs.py")
ARGUMENTS = f"{FILE}:make_arguments"

GATHER = jax.lax.GatherDimensionNumbers((0,), (0,), (0,))
SCATTER = jax.lax.ScatterDimensionNumbers((0,), (0,), (0,))


def find_line(name: str) -> int:
    """The number of the line of `programs.py` that is marked so."""
    return next(n for n, line in enumerate(FILE.read_text().splitlines(), 1) if line.endswith(f"# line: {name}"))


def compare(one: str, other: str) -> Difference | None:
    left, right = (trace(f"{FILE}:{name}", ARGUMENTS, ()) for name in (one, other))
    return explain(run_here(left), run_here(right), left.results, lambda _: None)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_planted_difference_is_named_with_its_line_and_kind(name: str) -> None:
    kind, line = KINDS[name]
    found = compare("base", name)
    assert found is not None
    assert (found.kind, found.where.partition(",")[0]) == (kind, f"programs.py:{find_line(line)}")


@pytest.mark.parametrize("other", ["base", "unrolled"])
def test_equal_numbers_are_no_difference(other: str) -> None:
    assert compare("base", other) is None


@pytest.mark.parametrize(("one", "other", "kind"), [("outside", "filled", "undefined"), ("clipped", "filled", "fault")])
def test_an_index_out_of_bounds_is_undefined_if_it_was_promised_to_be_within(one: str, other: str, kind: str) -> None:
    found = compare(one, other)
    assert found is not None
    assert (found.kind, found.where.partition(",")[0]) == (kind, f"programs.py:{find_line('outside')}")


def test_a_result_that_is_far_off_is_no_rounding_if_a_quarter_of_the_operations_are_off_too() -> None:
    close, off = (1e-7, MOST_ROUNDINGS), (1e-3, MOST_ROUNDINGS + 1)
    near, far = (MOST_NUMERICS, 1e6), (2 * MOST_NUMERICS, 1e6)
    assert [_is_wrong(upper, end) for upper in (close, off) for end in (near, far)] == [False, False, False, True]
    assert not _is_wrong(None, far)
    assert not _is_wrong(off, None)


def test_undefined_is_an_index_out_of_bounds_and_memory_without_values() -> None:
    def is_so(index: int, mode: str = "promise_in_bounds", add: bool = False) -> bool:
        def program(x: jax.Array, index: jax.Array) -> jax.Array:
            if add:
                return jax.lax.scatter_add(x, index, x[0], SCATTER, mode=mode)
            return jax.lax.gather(x, index, GATHER, (1, 2), mode=mode)

        given = jnp.ones((3, 2)), jnp.array([index])
        return is_undefined(jax.make_jaxpr(program)(*given).eqns[-1], given)

    assert [is_so(index) for index in (-1, 0, 2, 3)] == [True, False, False, True]
    assert [is_so(index, add=True) for index in (-1, 0, 2, 3)] == [True, False, False, True]
    assert [is_so(3, mode) for mode in ("clip", "fill")] == [False, False]
    assert is_undefined(jax.make_jaxpr(lambda: jax.lax.empty((3,), jnp.float32))().eqns[0], ())  # type: ignore[no-untyped-call]


def test_a_program_that_differs_from_itself_is_not_deterministic() -> None:
    found = compare("random", "base")
    assert found is not None
    assert found.kind == "not deterministic"
    assert f"programs.py:{find_line('random')}, pure_callback" in str(found)


def test_the_sign_of_an_imaginary_part_is_a_difference() -> None:
    one, other = np.array([1j, 2], np.complex64), np.array([-1j, 2], np.complex64)
    (multiply,) = jax.make_jaxpr(lambda x: x * x)(one).eqns
    assert judge_operation(multiply, [one, one], one, other)[0] == "fault"
    assert compare_numbers(one, other) == pytest.approx((2.0, 2.0**24))
    (scale,) = jax.make_jaxpr(lambda x: x * (2 + 1j))(one).eqns
    assert list_constants(scale, [one, np.complex64(2 + 1j)]) == ["2+1j"]


def explain_isa(program: str) -> Difference | None:
    other = parse_other("isa=SSE4_2", os.environ)
    assert other is not None
    return explain_environments(
        Request(program=f"{FILE}:{program}", args=ARGUMENTS, settings=()), other, lambda _: None
    )


@pytest.mark.slow
def test_another_instruction_set_is_rounding_at_the_first_line_that_rounds_otherwise() -> None:
    found = explain_isa("base")
    assert found is None or (found.kind == "rounding" and found.where.startswith("programs.py:"))


@pytest.mark.slow
def test_a_crash_of_the_other_side_names_the_operation() -> None:
    found = explain_isa("crashes")
    where = f"programs.py:{find_line('crash')}, pure_callback in float32"
    assert found == Difference(kind="crash of the other side", where=where)


def test_a_side_that_does_not_start_is_no_crash_and_gets_this_package_alone(tmp_path: Path) -> None:
    request = Request(program=f"{FILE}:base", args=ARGUMENTS, settings=())
    write_programs(tmp_path, {"python": f'#!/bin/sh\nls "${{PYTHONPATH%%:*}}" > {tmp_path}/seen\n'})
    other = parse_other(f"python={tmp_path}/python", os.environ)
    assert other is not None
    with pytest.raises(ToolError, match="ended before its first operation"):
        explain_environments(request, other, lambda _: None)
    assert (tmp_path / "seen").read_text() == "nightjar_models\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new", "kind"),
    [
        ("layers.py", "EPSILON = 1e-5", "EPSILON = 1e-3", "fault"),  # the same operations with another constant
        ("transformer.py", "is_causal=self.causal)", 'is_causal=self.causal).astype("bfloat16")', "numerics"),
    ],
)
def test_a_preset_of_another_environment_is_that_of_the_package_there(
    file: str, old: str, new: str, kind: str, tmp_path: Path
) -> None:
    package = tmp_path / PACKAGE.name
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "explain"))  # it may have none
    text = (package / "architectures" / file).read_text()
    assert text.count(old) == 1
    (package / "architectures" / file).write_text(text.replace(old, new))
    text = f'#!/bin/sh\n[ "$1" = -c ] && export PYTHONPATH={tmp_path}\nexec {sys.executable} "$@"\n'
    python = write_programs(tmp_path, {"python": text}) / "python"
    request = Request(program="vit_tiny", args=None, settings=tuple(SMALL[1:]))
    found = explain_environments(request, Other(python=(str(python),), variables={}), lambda _: None)
    assert found is not None
    assert (found.kind, found.where.partition(":")[0]) == (kind, "transformer.py")


@pytest.mark.slow
def test_a_setting_of_a_preset_is_named(called: Command) -> None:
    done = called("explain", "vit_tiny", "--against", "model.dropout=0.118", *SMALL_OPTIONS[2:], "--json")
    assert done.returncode == 1
    answer = json.loads(done.stdout)
    assert (answer["kind"], answer["where"].partition(":")[0]) == ("fault", "vit.py")


def test_wrong_options_say_what_is_expected(called: Command) -> None:
    for arguments, message in (
        (["gpt_tiny", "--against", "other"], "expected KEY=VALUE"),
        (["gpt_tiny", "--against", "isa=AVX2", "--args", "f32[2]"], "expected with a function"),
        ([f"{FILE}:base", "--against", f"{FILE}:mask", "--set", "a=1"], "expected with a preset"),
        ([f"{FILE}:base", "--against", "python=/no/python", "--args", ARGUMENTS], "no such program"),
        ([f"{FILE}:base", "--against", "isa=SSE42", "--args", ARGUMENTS], "expected one of SSE4_2, AVX,"),
        ([f"{FILE}:base", "--against", f"{FILE}:mask", "--args", "f32[8,16]"], "missing 3 required positional"),
    ):
        done = called("explain", *arguments)
        assert (done.returncode, message in done.stderr) == (2, True)


def test_sides_of_other_arguments_are_refused() -> None:
    left = trace(f"{FILE}:base", ARGUMENTS, ())
    right = trace(f"{FILE}:norm", "f32[8,16],f32[16]", ())
    with pytest.raises(InputError, match="take different arguments"):
        explain(run_here(left), run_here(right), left.results, lambda _: None)


def test_a_record_tells_operations_constants_and_digests() -> None:
    x = np.arange(3, dtype=np.float32)
    traced = trace_function(lambda x: jnp.sin(x) * 2.5, (x,))
    found = record(traced.jaxpr, [jnp.asarray(x)], keep=[0])
    sine, product = np.asarray(jnp.sin(x)), np.asarray(jnp.sin(x) * 2.5)
    given, made, result = map(digest_value, (x, sine, product))
    texts = [operation.text for operation in found.operations]
    assert [text.partition(",")[2] for text in texts] == [" sin in float32", " mul in float32"]
    common = {"types": ("float32[3]",)}
    assert found.operations == (
        Operation(place=0, name="sin", text=texts[0], detail=(), operands=(given,), results=(made,), **common),
        Operation(place=1, name="mul", text=texts[1], detail=("2.5",), operands=(made,), results=(result,), **common),
    )
    assert (found.arguments, found.results, [*found.kept]) == ((given,), (result,), [0])
    np.testing.assert_array_equal(found.kept[0], sine)
    np.testing.assert_array_equal(found.values[0], product)
    assert record(traced.jaxpr, [jnp.asarray(x)]).values == ()


def test_releases_run_in_an_environment_that_uv_makes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put_on_path(monkeypatch, tmp_path, {"uv": "#!/bin/sh\n"})
    needed = ["flax>=0.10", "grain[parquet]==0.2", "orbax-checkpoint ; python_version > '3'", "torch; extra == 'x'"]
    monkeypatch.setattr("importlib.metadata.requires", lambda _: needed)
    rest = ("--with=jax==0.9.0", "--with=flax", "--with=grain", "--with=orbax-checkpoint", "python")
    for text, version in (("python==3.11,jax==0.9.0", "3.11"), ("jax==0.9.0", "{}.{}".format(*sys.version_info))):
        command = ("uv", "run", "-q", "--no-project", "-p", version, *rest)
        assert parse_other(text, {"XLA_FLAGS": "--a"}) == Other(python=command, variables={})


def test_a_difference_is_one_sentence() -> None:
    known: dict[str, Any] = {"kind": "fault", "where": "a.py:3", "relative": 0.25, "roundings": 1e6}
    for changes, text in (
        ({"other": "b.py:4"}, "first differs at a.py:3: fault, 0.25 of the values' size; the other side: b.py:4"),
        ({"relative": np.inf, "result": "loss"}, "first differs at a.py:3: fault (seen in loss)"),
        ({"kind": "rounding", "roundings": 0.2}, "first differs at a.py:3: rounding, 1 ulp"),
        ({"where": ""}, "no difference beyond rounding: at most 0.25 of the values' size"),
    ):
        assert str(Difference(**{**known, **changes})) == text
