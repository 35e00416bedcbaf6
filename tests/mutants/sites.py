"""The mutants of a module, by place: every expression that can change what the module does.

In: the text of a module. Out: its mutants. What changes no result has none: docstrings, annotations, `__all__`, texts
of errors and logs, assertions, decorators, base classes, imports for types.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from tests.mutants.operators import DEAD_KEYWORDS, mutate, name_of_call

SILENT_CALLS = {
    *("print", "warn", "warning", "info", "debug", "exception", "log", "echo", "Option", "Argument", "TypeVar"),
    *("cast", "getLogger", "NewType", "Literal"),
}  # fmt: skip
SKIPPED = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.pattern, ast.Global, ast.Nonlocal)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    path: str
    line: int
    kind: str
    start: int
    end: int
    before: str
    after: str

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"

    def plant(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]


def find_mutants(path: str, source: bytes) -> list[list[Mutant]]:
    """The mutants of a module, those of one expression together, in the order of the text.

    >>> [[mutant.after for mutant in group] for group in find_mutants("x.py", b"y = a < 2 and not b")]
    [['(a < 2 or not b)', '(a < 2)'], ['(a <= 2)', '(a >= 2)'], ['3'], ['b']]
    """
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    groups = []
    for node in _list_expressions(ast.parse(source)):
        assert node.end_lineno is not None  # ast.parse sets both
        assert node.end_col_offset is not None
        start, end = lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset
        before = source[start:end].decode()
        group = [
            Mutant(path=path, line=node.lineno, kind=kind, start=start, end=end, before=before, after=_render(mutant))
            for kind, mutant in mutate(node)
        ]
        if group:
            groups.append(group)
    return groups


def _render(node: ast.expr) -> str:
    atom = isinstance(node, ast.Name | ast.Constant | ast.Call | ast.Attribute | ast.Subscript | ast.List | ast.Set)
    return ast.unparse(node) if atom else f"({ast.unparse(node)})"


def _list_expressions(node: ast.AST) -> Iterator[ast.expr]:
    """Every expression below a node that can change a result, outer ones first."""
    if isinstance(node, ast.expr):
        yield node
    for child in _list_children(node):
        yield from _list_expressions(child)


def _list_children(node: ast.AST) -> list[ast.AST]:
    children: list[ast.AST]
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            defaults = [default for default in (*node.args.defaults, *node.args.kw_defaults) if default is not None]
            children = [*defaults, *node.body]
        case ast.ClassDef():
            children = list(node.body)
        case ast.AnnAssign():
            children = [node.value] if node.value is not None else []
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            children = []
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Compare(left=ast.Name(id="__name__"))):
            children = list(node.orelse)
        case ast.Call():
            name = name_of_call(node)
            silent = name in SILENT_CALLS or name.endswith("Error")
            values = [keyword.value for keyword in node.keywords if keyword.arg not in DEAD_KEYWORDS]
            children = [] if silent else [node.func, *node.args, *values]
        case _:
            children = list(ast.iter_child_nodes(node))
    return [child for child in children if not isinstance(child, SKIPPED) and not _is_silent(child)]


def _is_silent(node: ast.AST) -> bool:
    """Whether a statement is a docstring or a call that only tells people something."""
    if not isinstance(node, ast.Expr):
        return False
    call = isinstance(node.value, ast.Call) and name_of_call(node.value) in SILENT_CALLS
    return call or isinstance(node.value, ast.Constant)
