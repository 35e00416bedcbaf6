"""What a template stands for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.formats.placeholders import fill_placeholders


def test_values_are_not_templates() -> None:
    assert fill_placeholders("{a}", {"a": "{b}"}) == "{b}"
    assert fill_placeholders(fill_placeholders("{a} {out}", {"a": "{out}"}, keep={"out"}), {"out": "/o"}) == "{out} /o"


@given(st.text())
def test_escaped_text_comes_out_as_it_was(text: str) -> None:
    assert fill_placeholders(text.replace("{", "{{").replace("}", "}}"), {}) == text


def test_an_unknown_placeholder_is_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown placeholder '\{b\}' in 'x \{b\}': expected one of \{a\}, \{out\}"):
        fill_placeholders("x {b}", {"a": "1"}, keep={"out"})
