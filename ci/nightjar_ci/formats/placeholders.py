"""Templates with placeholders, such as `--mesh {mesh}`.

In: a template and the values of its placeholders. Out: the text. `{{` and `}}` stand for braces. A placeholder that is
filled later (`{out}`, known only once a job runs) can be kept; then every brace stays escaped.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def fill_placeholders(template: str, values: Mapping[str, str], keep: Collection[str] = ()) -> str:
    """Fills the placeholders of a template.

    Args:
        template: text with `{name}` placeholders.
        keep: names that stay placeholders; if any is given, the result is a template again.

    >>> fill_placeholders("--mesh {mesh} {{x}}", {"mesh": "dp2"})
    '--mesh dp2 {x}'
    >>> fill_placeholders("{mesh} {out} {{x}}", {"mesh": "dp2"}, keep={"out"})
    'dp2 {out} {{x}}'
    """

    def fill(token: re.Match[str]) -> str:
        name = token[1]
        if keep and (name in keep or token[0] in ("{{", "}}")):
            return token[0]
        if token[0] in ("{{", "}}"):
            return token[0][0]
        if name is None:
            raise ValueError(f"a lone {token[0]!r} in {template!r}: expected a placeholder, or {token[0] * 2!r}")
        if name not in values:
            valid = ", ".join(f"{{{valid_name}}}" for valid_name in sorted({*values, *keep})) or "none here"
            raise ValueError(f"unknown placeholder {token[0]!r} in {template!r}: expected one of {valid}")
        if keep:
            return escape(values[name])
        return values[name]

    return _TOKEN.sub(fill, template)


def escape(text: str) -> str:
    """A template of a text that may have braces."""
    return text.replace("{", "{{").replace("}", "}}")
