"""The layers of Python packages: the rules of `docker/layers.txt`, which `docker/python-layer.sh` reads, too.

In: a checkout. Out: rules; the first match decides a package's layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from nightjar_ci.errors import InputError

LAYERS_FILE = "docker/layers.txt"


@dataclass(frozen=True, slots=True)
class LayerRules:
    """Layers and the patterns of their packages, in file order."""

    rules: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The layers, in file order."""
        return tuple(name for name, _ in self.rules)

    def layer_of(self, package: str) -> str:
        """The layer of a package.

        Args:
            package: its normalized name.

        >>> parse_layers("cudnn nvidia-cudnn-*\\nrest *", "layers.txt").layer_of("nvidia-cudnn-cu12")
        'cudnn'
        """
        return next(name for name, patterns in self.rules if any(fnmatchcase(package, pattern) for pattern in patterns))


def parse_layers(text: str, where: str) -> LayerRules:
    """The rules of a file.

    Args:
        text: a line `LAYER PATTERN...` for each layer; `#` starts a comment.
        where: the file's name, for messages.

    Raises:
        InputError: a line has no pattern, a layer occurs twice, or the last line does not match every package.
    """
    rules: list[tuple[str, tuple[str, ...]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, *patterns = words
        if not patterns:
            raise InputError(f"{where}:{number}: {line!r}: expected LAYER PATTERN...", "add the layer's patterns")
        if name in dict(rules):
            raise InputError(f"{where}:{number}: duplicate layer {name!r}.", "put its patterns on one line")
        rules.append((name, tuple(patterns)))
    if not rules or "*" not in rules[-1][1]:
        raise InputError(f"{where}: the last layer does not match every package.", "end with a line `rest *`")
    return LayerRules(tuple(rules))


def read_layers(checkout: Path) -> LayerRules:
    """The rules of a checkout.

    Raises:
        InputError: the file is missing or invalid.
    """
    path = checkout / LAYERS_FILE
    try:
        return parse_layers(path.read_text(encoding="utf-8"), LAYERS_FILE)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}.", "restore it with `git restore docker`") from None
