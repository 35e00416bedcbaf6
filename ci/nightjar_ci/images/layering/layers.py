"""Which layer does a Python package lie in? `docker/layers.txt`, which `docker/python-layer.sh` reads as well.

In: a checkout. Out: rules, of which the first that matches a package decides. Pure but for reading the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from nightjar_ci.errors import InputError

LAYERS_FILE = "docker/layers.txt"


@dataclass(frozen=True, slots=True)
class LayerRules:
    """Layers and the patterns of their packages, in the order of the file."""

    rules: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The layers, in the order of the file."""
        return tuple(name for name, _ in self.rules)

    def layer_of(self, package: str) -> str:
        """The layer of a package.

        Args:
            package: its normalized name.

        >>> parse_layers("cudnn nvidia-cudnn-*\\nrest *", "layers.txt").layer_of("nvidia-cudnn-cu12")
        'cudnn'
        """
        return next(name for name, patterns in self.rules if any(fnmatchcase(package, one) for one in patterns))


def parse_layers(text: str, where: str) -> LayerRules:
    """The rules of a file.

    Args:
        text: a line `LAYER PATTERN...` for each layer; `#` begins a comment.
        where: the file's name, for messages.

    Raises:
        InputError: a line without a pattern, a layer named twice, or no last line that takes every package.
    """
    rules: list[tuple[str, tuple[str, ...]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, *patterns = words
        if not patterns:
            raise InputError(f"{where}:{number}: {line!r}: expected a layer and its patterns.", "LAYER PATTERN...")
        if name in dict(rules):
            raise InputError(f"{where}:{number}: layer {name!r} stands there twice.", "give it one line")
        rules.append((name, tuple(patterns)))
    if not rules or "*" not in rules[-1][1]:
        raise InputError(f"{where}: the last layer does not take every package.", "end with a line `rest *`")
    return LayerRules(tuple(rules))


def read_layers(checkout: Path) -> LayerRules:
    """The rules of a checkout.

    Raises:
        InputError: the file is missing or wrong.
    """
    path = checkout / LAYERS_FILE
    try:
        return parse_layers(path.read_text(encoding="utf-8"), LAYERS_FILE)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}.", "`git restore docker` brings it back") from None
