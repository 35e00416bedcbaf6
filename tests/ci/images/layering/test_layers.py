"""The rules of docker/layers.txt: the first match decides, and every package has a layer."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightjar_ci.errors import InputError
from nightjar_ci.images.layering.layers import parse_layers, read_layers

TEXT = "# layers\ncudnn nvidia-cudnn-* # the largest\n\njax jax jaxlib\nrest *\n"


def test_the_first_rule_that_matches_decides() -> None:
    rules = parse_layers(TEXT, "layers.txt")
    assert rules.names == ("cudnn", "jax", "rest")
    packages = ("nvidia-cudnn-cu12", "jax", "jaxlib", "jaxtyping", "nvidia-cudnn")
    assert [rules.layer_of(package) for package in packages] == ["cudnn", "jax", "jax", "rest", "rest"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a x\nb\nrest *\n", "layers.txt:2: 'b': expected LAYER PATTERN"),
        ("a x\n# no\na y\nrest *\n", "layers.txt:3: duplicate layer 'a'"),
        ("a x\n", "the last layer does not match every package"),
        ("rest *\na x\n", "the last layer does not match every package"),
        ("", "the last layer does not match every package"),
    ],
)
def test_a_file_that_leaves_a_package_without_a_layer_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_layers(text, "layers.txt")
    assert caught.value.message.startswith(message) or message in caught.value.message


def test_a_checkout_without_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"docker/layers\.txt: No such file"):
        read_layers(tmp_path)
