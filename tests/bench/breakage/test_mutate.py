"""The faults of a function: each kind, what is left alone, and that lines keep their numbers."""

from __future__ import annotations

import pytest

from tests.bench.breakage.lines import executes
from tests.bench.breakage.mutate import Edit, Mutator, find_function

SOURCE = '''"""Module."""


class Layer:
    """A layer."""

    def call(self, x: int = 3, axis: int = -1, *, bias: bool = True) -> int:
        """Calls it with 2."""
        assert x < 5
        if x > 1:
            raise ValueError(f"not {x + 1}")
        self.count = x + 7
        y = total(
            x,
            axis=axis,
            keep=True,
        )
        return y * 2 if bias else y
'''


def faults(source: str = SOURCE, name: str = "Layer.call") -> list[Edit]:
    function = find_function(source, name)
    assert function is not None
    return Mutator(source).find_faults(function)


def changes(kind: str) -> set[tuple[str, str]]:
    return {(edit.before, edit.text) for edit in faults() if edit.kind == kind}


def test_each_kind_of_fault_is_found() -> None:
    assert changes("off by one") == {("1", "2"), ("7", "8"), ("2", "3"), ("x > 1", "(x >= 1)")}
    assert changes("missing term") == {("x + 7", "(x)"), ("x + 7", "(7)"), ("y * 2", "(y)"), ("y * 2", "(2)")}
    assert changes("wrong default") == {("3", "4"), ("1", "2"), ("True", "False")}
    assert ("self.count = x + 7", "pass") in changes("lost state")
    assert (",\n            keep=True", "") in changes("ignored argument")
    assert ("bias", "(True)") in changes("ignored argument")
    assert {before for before, _ in changes("wrong axis")} == {"axis"}


def test_docstrings_annotations_assertions_and_errors_are_left_alone() -> None:
    assert not [edit for edit in faults() if edit.line in (8, 9, 11)]


@pytest.mark.parametrize("edit", faults(), ids=lambda edit: f"{edit.kind}-{edit.line}-{edit.start}")
def test_a_changed_module_is_python_and_all_else_of_it_is_unchanged(edit: Edit) -> None:
    changed = edit.apply(SOURCE)
    compile(changed, "module.py", "exec")
    assert changed != SOURCE
    assert changed.endswith(SOURCE.encode()[edit.end :].decode())


def test_the_opposite_axis_is_that_of_numbers_and_tuples() -> None:
    (edit,) = [edit for edit in faults() if edit.kind == "wrong axis"]
    results = [eval(edit.text, {"axis": axis}) for axis in (0, -1, (0, 1), [2], None, "i", True)]
    assert results == [-1, 0, (-1, -2), [-3], None, "i", True]


def test_rewrites_change_no_result() -> None:
    source = 'def f(x):\n    """One\n    two."""\n    if x > 1:\n        return g(x)\n    else:\n        return x\n'
    function = find_function(source, "f")
    assert function is not None
    edits = Mutator(source).find_rewrites(function)
    assert {edit.kind for edit in edits} == {"docstring", "identity", "double negation"}
    for edit in edits:
        scope = {"g": lambda x: 10 * x}
        exec(edit.apply(source), scope)
        assert [scope["f"](x) for x in (0, 3)] == [0, 30]
        assert edit.apply(source).count("\n") == source.count("\n")


def test_a_cell_that_executes_no_line_of_the_statement_does_not_execute_the_change() -> None:
    (edit,) = [edit for edit in faults() if "keep=True" in edit.before]
    assert edit.statement == 13
    assert executes({"m:f": [13]}, "m:f", edit)
    assert executes({"m:f": [16]}, "m:f", edit)
    assert not executes({"m:f": [12, 18]}, "m:f", edit)
    assert not executes({"m:g": [13]}, "m:f", edit)


def test_another_default_is_executed_by_every_call() -> None:
    edit = next(edit for edit in faults() if edit.kind == "wrong default")
    assert executes({"m:f": [18]}, "m:f", edit)
    assert not executes({}, "m:f", edit)
