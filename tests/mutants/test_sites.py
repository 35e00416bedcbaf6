"""Mutants of a module: which slips there are, and that what changes no result has none."""

import ast
import textwrap

import pytest

from tests.mutants.sites import find_mutants


def list_after(source: str) -> list[str]:
    text = textwrap.dedent(source).encode()
    return [mutant.after for group in find_mutants("x.py", text) for mutant in group]


@pytest.mark.parametrize(
    ("source", "after"),
    [
        ("a <= b", ["(a < b)", "(a > b)"]),
        ("a in b", ["(a not in b)"]),
        ("n + 1", ["(n - 1)", "2"]),
        ("n = 600", ["1200"]),
        ("q = 0.05", ["0.1"]),
        ("wanted = True", ["False"]),
        ("max(a, b)", ["min(a, b)"]),
        ("f(a, b)", ["f(b, a)"]),
        ("f(a, by=b)", ["f(a)"]),
        ("[a for a in b if c]", ["([a for a in b])"]),
        ("x = [a, *b]", ["[a]"]),
        ("a if b else c", ["(c if b else a)"]),
        ("-a", ["a"]),
    ],
)
def test_each_kind_of_slip(source: str, after: list[str]) -> None:
    assert list_after(source) == after


@pytest.mark.parametrize(
    "source",
    [
        '"""Of 3 parts, a < b."""',
        "__all__ = [f(a, b), c]",
        "size: Annotated[int, Field(1, 2)]",
        "raise ValueError(f'{a + 1}', 2)",
        "error = InputError('3 < 4', hint=a or b)",
        "assert a < 1",
        "log.warning('%s', a + 1)",
        "print(a + 1)",
        "text = f'{a + 1}'",
        "if TYPE_CHECKING:\n    a = 1",
        "if __name__ == '__main__':\n    a = 1",
        "@cache(1)\ndef f(a: Literal[1]) -> Literal[2]: ...",
        "class A(Base[1]): ...",
        "match a:\n    case 1: ...",
        "path = 'a' + b",
        "f(a, timeout=3, strict=True)",
        "isinstance(a, b)",
        "Row(name=a, ours=b)",
    ],
)
def test_what_changes_no_result_has_no_mutants(source: str) -> None:
    assert list_after(source) == []


def test_a_mutant_changes_its_own_expression_and_nothing_else() -> None:
    source = 'é = "ä"  # Ü\nif (a  <  b):  # why\n    c = d\n'.encode()
    (group,) = find_mutants("x.py", source)
    boundary, other = group
    assert (boundary.place, boundary.kind, boundary.before) == ("x.py:2", "comparison", "a  <  b")
    assert boundary.plant(source).decode() == 'é = "ä"  # Ü\nif ((a <= b)):  # why\n    c = d\n'
    assert other.plant(source).decode() == 'é = "ä"  # Ü\nif ((a >= b)):  # why\n    c = d\n'


def test_every_mutant_of_a_whole_module_is_another_valid_module() -> None:
    source = b"def f(a, *b, c=3):\n    return sum(x * 2 for x in a if x) if not b else g(c, b)[1:]\n"
    mutants = [mutant for group in find_mutants("x.py", source) for mutant in group]
    trees = {ast.dump(ast.parse(mutant.plant(source))) for mutant in mutants}
    assert len(trees) == len(mutants) == 8
    assert ast.dump(ast.parse(source)) not in trees
