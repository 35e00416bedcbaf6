"""Values of options that belong to a name, such as `--source jax=../jax` and `--pin jax:third_party/xla`."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.utils import canonicalize_name

from nightjar_ci.errors import InputError


def split_named(option: str, values: Sequence[str], form: str, example: str) -> list[tuple[str, str]]:
    """Names and the value of each.

    Args:
        form: such as `NAME=REV`; its first non-letter separates the two.
        example: a valid value, for the hint.

    >>> split_named("--pin", ["jax:third_party/xla"], "NAME:PATH", "")
    [('jax', 'third_party/xla')]
    """
    separator = next(letter for letter in form if not letter.isalpha())
    named = []
    for value in values:
        name, _, text = value.partition(separator)
        if not (name and text):
            raise InputError(f"{option}: {value!r} is not {form}.", f"{option} {example}")
        named.append((name, text))
    return named


def parse_sources(values: Sequence[str]) -> dict[str, str]:
    """The repository of each package, by its canonical name."""
    named = split_named("--source", values, "NAME=FOLDER_OR_ADDRESS", "jax=../jax")
    return {canonicalize_name(name): address for name, address in named}
