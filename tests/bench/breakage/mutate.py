"""The mutants of one function of a module, by the operators with which our own code is mutated (tests/mutants).

In: the source of a module and the qualified name of a function. Out: its mutants, each with the line of its statement.
"""

import ast
from collections.abc import Iterator
from typing import Any

from tests.mutants.sites import Mutant, find_mutants


def find_changes(source: str, function: ast.FunctionDef) -> list[tuple[Mutant, int]]:
    """The mutants of a function, each with the first line of its innermost statement; 0 in a default of the function.

    >>> source = "def f(x=1):\n    return x + 2"
    >>> [(mutant.before, line) for mutant, line in find_changes(source, find_function(source, "f"))]
    [('1', 0), ('x + 2', 2), ('2', 2)]
    """
    statements = [node.lineno for node in ast.walk(function) if isinstance(node, ast.stmt) and node is not function]
    mutants = [mutant for group in find_mutants("", source.encode()) for mutant in group]
    inside = [one for one in mutants if function.lineno <= one.line <= (function.end_lineno or 0)]
    return [(one, max((line for line in statements if line <= one.line), default=0)) for one in inside]


def find_function(source: str, qualified_name: str) -> ast.FunctionDef | None:
    """The syntax tree of a function, by a name such as `Linear.__call__` or `make.<locals>.update`."""
    found: ast.AST = ast.parse(source)
    for name in qualified_name.replace(".<locals>", "").split("."):
        matching = [node for node in _definitions(found) if node.name == name]
        if not matching:
            return None
        found = matching[-1]  # overloads come first
    return found if isinstance(found, ast.FunctionDef) else None


def _definitions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """The functions and classes defined in a node, also below `if` and `with`, and not inside each other."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            yield child
        elif isinstance(child, ast.stmt):
            yield from _definitions(child)


def find_node_defaults(function: ast.FunctionDef) -> tuple[list[tuple[Any] | None], dict[str, tuple[Any] | None]]:
    """The defaults of a function, positional and by keyword; each in a tuple, or None where it is not a literal."""
    arguments = function.args
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return [_read_literal(node) for node in arguments.defaults], {a.arg: _read_literal(node) for a, node in keywords}


def _read_literal(node: ast.expr | None) -> tuple[Any] | None:
    try:
        return None if node is None else (ast.literal_eval(node),)
    except ValueError:
        return None
