"""Faults of a function by its syntax tree, of the six `KINDS`, and rewrites that are none.

In: the source of a module and the qualified name of a function. Out: the `Edit`s of its text that make each fault, and
harmless `Edit`s, which must change nothing. Only the edited expression changes: lines keep their numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

Kind = Literal["off by one", "wrong axis", "missing term", "wrong default", "ignored argument", "lost state"]
KINDS: tuple[Kind, ...] = (
    "off by one",
    "wrong axis",
    "missing term",
    "wrong default",
    "ignored argument",
    "lost state",
)
_AXES = ("axis", "axes", "dim", "dimension", "in_axes", "out_axes", "axis_name", "batch_axis")
_SHIFTED: dict[type[ast.cmpop], str] = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_WORDS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_TERMS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
LARGEST = 64  # of the numbers that are off by one: larger ones are sizes and seeds


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Edit:
    """One change of a module's text: bytes `start` to `end` become `text`.

    Attributes:
        kind: of the fault, or of the harmless rewrite.
        line: where it begins.
        statement: the line where its innermost statement begins.
        before: the text that is replaced.
    """

    start: int
    end: int
    line: int
    statement: int = 0
    kind: str
    before: str
    text: str

    def apply(self, source: str) -> str:
        """The changed text of the module.

        >>> Edit(start=4, end=5, line=1, kind="off by one", before="1", text="2").apply("x = 1")
        'x = 2'
        """
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()


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


class Mutator:
    """Finds the faults that the text of one module allows."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._data = source.encode()
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def find_faults(self, function: ast.FunctionDef) -> list[Edit]:
        """The faults of a function, without those in annotations, decorators, docstrings, assertions and errors."""
        edits = [*self._find_wrong_defaults(function)]
        defaults = read_defaults(function)
        for statement in function.body:
            for node in _walk_code(statement):
                edits += self._find_at(node, defaults)
        statements = [node.lineno for node in ast.walk(function) if isinstance(node, ast.stmt)]
        return sorted({replace(edit, statement=max(n for n in statements if n <= edit.line)) for edit in edits})

    def find_rewrites(self, function: ast.FunctionDef) -> list[Edit]:
        """Harmless changes of a function: another docstring, a value handed on, a condition negated twice."""
        edits = []
        first = function.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            end = first.value.end_lineno or first.value.lineno
            lines = "\n" * (end - first.value.lineno)
            edits.append(self._replace(first.value, f'"""Another text.{lines}"""', "docstring"))
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and isinstance(node.value, (ast.Name, ast.Call)):
                edits.append(self._replace(node.value, f"(lambda same: same)({self._text(node.value)})", "identity"))
            if isinstance(node, ast.If) and node.orelse and isinstance(node.test, ast.Compare):
                edits.append(self._replace(node.test, f"not (not ({self._text(node.test)}))", "double negation"))
        return sorted(edits)

    def _find_at(self, node: ast.AST, defaults: dict[str, ast.expr]) -> Iterator[Edit]:
        if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) <= LARGEST:
            yield self._replace(node, str(node.value + 1), "off by one")
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _SHIFTED:
            left, right = self._text(node.left), self._text(node.comparators[0])
            yield self._replace(node, f"({left} {_SHIFTED[type(node.ops[0])]} {right})", "off by one")
        if isinstance(node, ast.Call):
            yield from self._find_in_call(node)
        if isinstance(node, ast.BinOp) and type(node.op) in _TERMS:
            yield self._replace(node, f"({self._text(node.left)})", "missing term")
            if isinstance(node.op, (ast.Add, ast.Mult)):
                yield self._replace(node, f"({self._text(node.right)})", "missing term")
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in defaults:
            yield self._replace(node, f"({self._text(defaults[node.id])})", "ignored argument")
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in targets):
                yield self._replace(node, "pass", "lost state")
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = node.value.func
            if isinstance(called, ast.Attribute) and called.attr.lstrip("_").startswith(
                ("set", "update", "append", "add")
            ):
                yield self._replace(node, "pass", "lost state")

    def _find_in_call(self, call: ast.Call) -> Iterator[Edit]:
        for keyword in call.keywords:
            if keyword.arg is None:
                continue
            value = keyword.value
            if keyword.arg in _AXES:
                yield self._replace(value, self._other_axis(value), "wrong axis")
            else:
                yield from self._without_keyword(keyword)
        for argument in call.args:
            if isinstance(argument, ast.Name) and argument.id in _AXES:
                yield self._replace(argument, self._other_axis(argument), "wrong axis")

    def _other_axis(self, value: ast.expr) -> str:
        """The opposite axis: the last for the first, and the other way round; of a tuple that of each."""
        text = self._text(value)
        return (
            f"(lambda a: -1 - a if type(a) is int else type(a)(-1 - b if type(b) is int else b for b in a) "
            f"if isinstance(a, (tuple, list)) else a)({text})"
        )

    def _without_keyword(self, keyword: ast.keyword) -> Iterator[Edit]:
        """A call without one of its keywords, with the comma before it or behind it."""
        start, end = self._offset(keyword.lineno, keyword.col_offset), self._end(keyword)
        before = self._data[:start].rstrip()
        if before.endswith(b","):
            yield self._edit(len(before) - 1, end, keyword.lineno, "ignored argument", "")

    def _find_wrong_defaults(self, function: ast.FunctionDef) -> Iterator[Edit]:
        arguments = function.args
        for default in (*arguments.defaults, *filter(None, arguments.kw_defaults)):
            value = default.operand if isinstance(default, ast.UnaryOp) else default
            if not isinstance(value, ast.Constant):
                continue
            if isinstance(value.value, bool):
                yield self._replace(default, str(not value.value), "wrong default")
            elif isinstance(value.value, int):
                yield self._replace(value, str(value.value + 1), "wrong default")
            elif isinstance(value.value, float):
                yield self._replace(value, repr(value.value * 2 or 0.5), "wrong default")

    def _replace(self, node: ast.expr | ast.stmt, text: str, kind: str) -> Edit:
        """A replacement that has as many line ends as what it replaces, so that the lines below keep their numbers."""
        start, end = self._offset(node.lineno, node.col_offset), self._end(node)
        lost = self._data[start:end].count(b"\n") - text.count("\n")
        if lost > 0 and isinstance(node, ast.expr) and text:
            text = f"({text}{chr(10) * lost})"
        return self._edit(start, end, node.lineno, kind, text)

    def _edit(self, start: int, end: int, line: int, kind: str, text: str) -> Edit:
        return Edit(start=start, end=end, line=line, kind=kind, before=self._data[start:end].decode(), text=text)

    def _text(self, node: ast.expr) -> str:
        return self._data[self._offset(node.lineno, node.col_offset) : self._end(node)].decode()

    def _end(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.end_lineno, node.end_col_offset)

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column


def read_defaults(function: ast.FunctionDef) -> dict[str, ast.expr]:
    """The parameters of a function that have a constant as default."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return {argument.arg: value for argument, value in pairs if isinstance(value, (ast.Constant, ast.UnaryOp))}


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


def _walk_code(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that compute: no docstring, annotation, assertion, error, message or import."""
    if isinstance(node, (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Global, ast.Nonlocal)):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk_code(child)
