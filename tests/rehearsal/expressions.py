"""What does `${{ ... }}` give? The part of GitHub's expressions that our workflows use, by recursive descent.

In: a text and the contexts (`github`, `inputs`, `steps`, ...). Out: the text filled in, or the value of one expression.
What is not known here is an error, and never an empty text.

Source: https://docs.github.com/en/actions/reference/workflows-and-actions/expressions
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Contexts = Mapping[str, Any]
Functions = Mapping[str, Callable[..., Any]]

_TOKEN = re.compile(r"\s*(?:'(?:[^']|'')*'|\d+|[A-Za-z_][\w-]*|&&|\|\||==|!=|[!().,])")
_HOLE = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)


class ExpressionError(ValueError):
    """An expression that is not understood."""


def fill(text: str, contexts: Contexts, functions: Functions) -> str:
    """A text with every `${{ ... }}` replaced by its value.

    >>> fill("state-${{ inputs.name }}", {"inputs": {"name": "cpu"}}, {})
    'state-cpu'
    """
    return _HOLE.sub(lambda hole: show(evaluate(hole[1], contexts, functions)), text)


def evaluate(text: str, contexts: Contexts, functions: Functions) -> Any:
    """The value of one expression.

    Raises:
        ExpressionError: it is not of the form that is known here, or names something unknown.

    >>> evaluate("inputs.a == 'x' || !true", {"inputs": {"a": "x"}}, {})
    True
    """
    parser = _Parser(text, contexts, functions)
    value = parser.either()
    if parser.peek() is not None:
        raise ExpressionError(f"{text!r}: {parser.peek()!r} is one too many")
    return value


def show(value: Any) -> str:
    """A value as a text of a workflow: null is nothing, truth is lower case."""
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, bool | dict | list) else str(value)


class _Parser:
    """Reads and evaluates at once; `||` and `&&` give one of their sides, as on GitHub."""

    def __init__(self, text: str, contexts: Contexts, functions: Functions) -> None:
        self.text, self.contexts = text, contexts
        own: Functions = {"fromJSON": json.loads, "format": _format, "contains": _contains, "join": _join}
        self.functions = {**own, **functions}
        self.tokens: list[str] = []
        place = 0
        while text[place:].strip():
            found = _TOKEN.match(text, place)
            if found is None:
                raise ExpressionError(f"{text!r}: {text[place:]!r} is not understood")
            self.tokens.append(found[0].strip())
            place = found.end()

    def peek(self) -> str | None:
        return self.tokens[0] if self.tokens else None

    def take(self, wanted: str | None = None) -> str:
        if not self.tokens or (wanted is not None and self.tokens[0] != wanted):
            raise ExpressionError(f"{self.text!r}: expected {wanted or 'more'} before {self.peek() or 'its end'!r}")
        return self.tokens.pop(0)

    def either(self) -> Any:
        value = self.both()
        while self.peek() == "||":
            self.take()
            other = self.both()
            value = value or other
        return value

    def both(self) -> Any:
        value = self.equal()
        while self.peek() == "&&":
            self.take()
            other = self.equal()
            value = value and other
        return value

    def equal(self) -> Any:
        value = self.negated()
        while self.peek() in ("==", "!="):
            same = self.take() == "=="
            value = (show(value).lower() == show(self.negated()).lower()) is same
        return value

    def negated(self) -> Any:
        if self.peek() == "!":
            self.take()
            return not self.negated()
        return self.single()

    def single(self) -> Any:
        token = self.take()
        if token == "(":
            value = self.either()
            self.take(")")
            return value
        if token.startswith("'"):
            return token[1:-1].replace("''", "'")
        if token.isdigit():
            return int(token)
        if token in ("true", "false", "null"):
            return json.loads(token)
        return self.call(token) if self.peek() == "(" else self.look_up(token)

    def call(self, name: str) -> Any:
        if name not in self.functions:
            raise ExpressionError(f"{self.text!r}: no function {name!r}")
        self.take("(")
        given = []
        while self.peek() != ")":
            given.append(self.either())
            if self.peek() == ",":
                self.take()
        self.take(")")
        return self.functions[name](*given)

    def look_up(self, name: str) -> Any:
        if name not in self.contexts:
            raise ExpressionError(f"{self.text!r}: no context {name!r}")
        value, path = self.contexts[name], name
        while self.peek() == ".":
            self.take()
            key = self.take()
            path += f".{key}"
            if name in ("vars", "secrets", "env", "steps", "needs") and isinstance(value, Mapping):
                value = value.get(key)  # what nobody has set is nothing
            elif isinstance(value, Mapping) and key in value:
                value = value[key]
            elif value is not None:
                raise ExpressionError(f"{self.text!r}: {path} is not known")
        return value


def _contains(text: Any, part: Any) -> bool:
    return show(part).lower() in show(text).lower()


def _format(pattern: str, *values: Any) -> str:
    return re.sub(r"\{(\d+)\}", lambda hole: show(values[int(hole[1])]), pattern)


def _join(values: list[Any], separator: str) -> str:
    return separator.join(map(show, values))
