"""Mutations of one expression: a flipped comparison, a constant off by one, a dropped `not`, swapped arguments.

In: an expression of a syntax tree. Out: the expressions that a slip of the pen would have made of it, each with the
name of the slip. What raises an error in every call (a list minus a list, a required argument dropped) is left out
where that shows in the expression: such mutants die of anything and say nothing about the tests.
"""

import ast
import math
from collections.abc import Iterator
from copy import copy

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
SYMMETRIC = {"min", "max", "minimum", "maximum", "isclose", "gcd", "logaddexp", "union", "samefile"}
OPPOSITES = {"min": "max", "max": "min", "any": "all", "all": "any"}
LARGE = 20  # a larger integer is doubled, as one more is often within what it stands for
TYPED = {"isinstance", "issubclass", "getattr", "hasattr", "setattr", "cast", "field", "zip", "range", "partial"}
# Keywords that change no result that a test could see: how a file is encoded, whether lengths are compared.
DEAD_KEYWORDS = {
    *("help", "description", "doc", "hint", "title", "metavar", "message", "rich_help_panel", "encoding", "errors"),
    *("strict", "flush", "check", "text", "ensure_ascii", "indent", "exist_ok", "parents", "ignore_errors", "timeout"),
    *("ignore_cleanup_errors", "stacklevel", "copy", "maxsize", "file", "prefix", "suffix", "missing_ok", "dir"),
}  # fmt: skip


def mutate(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """The mutants of one expression, its own parts left as they are.

    >>> [(name, ast.unparse(mutant)) for name, mutant in mutate(ast.parse("a < 2", mode="eval").body)]
    [('comparison', 'a <= 2'), ('comparison', 'a >= 2')]
    >>> [(name, ast.unparse(mutant)) for name, mutant in mutate(ast.parse("f(a, b, by=c)", mode="eval").body)]
    [('swapped arguments', 'f(b, a, by=c)'), ('dropped keyword', 'f(a, b)')]
    """
    match node:
        case ast.Compare(ops=[operation]):
            yield from (("comparison", _with(node, ops=[other()])) for other in COMPARISONS.get(type(operation), ()))
        case ast.BoolOp():
            yield "and/or", _with(node, op=ast.And() if isinstance(node.op, ast.Or) else ast.Or())
            yield "dropped operand", node.values[0] if len(node.values) == 2 else _with(node, values=node.values[:-1])
        case ast.UnaryOp(op=ast.Not()):
            yield "dropped not", node.operand
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            yield "dropped sign", operand
        case ast.BinOp() if type(node.op) in ARITHMETIC and not _is_sequence(node.left) | _is_sequence(node.right):
            yield "arithmetic", _with(node, op=ARITHMETIC[type(node.op)]())
        case ast.Constant():
            yield from _mutate_constant(node)
        case ast.IfExp():
            yield "swapped branches", _with(node, body=node.orelse, orelse=node.body)
        case ast.Call():
            yield from _mutate_call(node)
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp() if node.generators[-1].ifs:
            unfiltered = _with(node.generators[-1], ifs=node.generators[-1].ifs[:-1])
            yield "dropped filter", _with(node, generators=[*node.generators[:-1], unfiltered])
        case ast.List(ctx=ast.Load()) | ast.Set() if len(node.elts) > 1:
            yield "dropped part", _with(node, elts=node.elts[:-1])


def _mutate_constant(node: ast.Constant) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield "constant", ast.Constant(node.value * 2 if node.value > LARGE else node.value + 1)
    elif isinstance(node.value, float) and math.isfinite(node.value):
        yield "constant", ast.Constant(node.value * 2 or 1.0)


def _mutate_call(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    name = name_of_call(node)
    positional = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
    if isinstance(node.func, ast.Name) and name in OPPOSITES:
        yield "opposite", _with(node, func=ast.Name(OPPOSITES[name]))
    if name in TYPED:
        return
    if (
        name not in SYMMETRIC
        and len(positional) == len(node.args) > 1
        and ast.dump(node.args[0]) != ast.dump(node.args[1])
    ):
        yield "swapped arguments", _with(node, args=[node.args[1], node.args[0], *node.args[2:]])
    if name[:1].islower():  # a class of data has no defaults for most of its fields
        for keyword in node.keywords:
            if keyword.arg and keyword.arg not in DEAD_KEYWORDS:
                yield "dropped keyword", _with(node, keywords=[other for other in node.keywords if other != keyword])


def name_of_call(node: ast.Call) -> str:
    """The last name of what is called, such as `append`; empty for a call of a call."""
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _is_sequence(node: ast.expr) -> bool:
    """Whether an operand is a text or a list, with which most other arithmetic raises an error."""
    if isinstance(node, ast.BinOp):
        return _is_sequence(node.left) or _is_sequence(node.right)
    text = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return text or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)


def _with(node: ast.AST, **changes: object) -> ast.expr:
    changed = copy(node)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed  # type: ignore[return-value]
