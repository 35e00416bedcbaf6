"""The calls of one recorded job: the recorder's lines, read and joined.

In: the folder of the recorder's files, and the names in use. Out: a `Recording`. A name counts as executed if code of
another package read it and a function behind it ran, or if no such function is visible: a value, a type without Python
code, a function in C.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nightjar_ci.errors import InputError
from nightjar_ci.untrusted.files import read_untrusted

ALIASES = {  # common import aliases in lists of names
    "jnp": "jax.numpy",
    "lax": "jax.lax",
    "nn": "flax.linen",
    "nnx": "flax.nnx",
    "ocp": "orbax.checkpoint",
}
# Of sources with `import grain.python as grain`; the module `grain` itself lacks these names.
GRAIN_PYTHON = frozenset({"Batch", "IndexSampler", "MapTransform", "NoSharding", "RandomAccessDataSource"})


@dataclass(frozen=True, slots=True)
class Read:
    """One reading of a public name: by which package, the definition of its object, and the functions behind it."""

    name: str
    package: str
    definition: str | None
    functions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """The calls of a job.

    Attributes:
        functions: as `module:qualified name`.
        aliases: the definition of a name's object, for names in use.
    """

    functions: set[str] = field(default_factory=set)
    reads: set[Read] = field(default_factory=set)
    aliases: dict[str, str] = field(default_factory=dict)

    def executed(self) -> dict[str, set[str]]:
        """The executed public names, each with the packages that used it, by whichever name of the object."""
        names: dict[str, set[str]] = {}
        by_definition: dict[str, set[str]] = {}
        for read in self.reads:
            if not read.functions or self.functions.intersection(read.functions):
                names.setdefault(read.name, set()).add(read.package)
                if read.definition is not None:
                    by_definition.setdefault(read.definition, set()).add(read.package)
        for alias, definition in self.aliases.items():
            if definition in by_definition and _owner(alias) == _owner(definition):
                names.setdefault(alias, set()).update(by_definition[definition])
        return names

    def find_users(self, name: str, executed: dict[str, set[str]]) -> set[str]:
        """The packages that used a name; for `jax.config.update` of `jax.config`, if a function `update` ran."""
        if name in executed:
            return executed[name]
        owner, _, attribute = name.rpartition(".")
        ran = any(function.endswith(f".{attribute}") for function in self.functions)
        return executed.get(owner, set()) if ran else set()


def read_recording(folder: Path) -> Recording:
    """Reads the files of a recorder; a last line that a killed process did not finish is left out."""
    recording = Recording()
    for path in sorted(folder.glob("*.jsonl")):
        for line in _read_lines(folder, path):
            try:
                _add(recording, json.loads(line))
            except (ValueError, TypeError, LookupError, RecursionError):
                raise InputError(f"{path}: {line[:80]!r} is not a line of the recorder.") from None
    return recording


def _read_lines(folder: Path, path: Path) -> Sequence[str]:
    try:
        text = read_untrusted(folder, path.relative_to(folder)).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}.") from None
    return text.split("\n")[:-1]


def _add(recording: Recording, line: Any) -> None:
    if line[0] == "function":
        module, name = _check_texts(line[1:], 2)
        recording.functions.add(f"{module}:{name}")
    elif line[0] == "alias":
        name, definition = _check_texts(line[1:], 2)
        recording.aliases[name] = definition
    else:
        *names, definition, functions = line[1:]
        module, attribute, package = _check_texts(names, 3)
        if definition is not None:
            _check_texts([definition], 1)
        behind = tuple(":".join(_check_texts(function, 2)) for function in functions)
        recording.reads.add(Read(f"{module}.{attribute}", package, definition, behind))


def _check_texts(values: Any, number: int) -> list[str]:
    """A given number of texts that can be encoded; a job may write anything."""
    if not isinstance(values, list) or len(values) != number or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{values!r} are not {number} texts")
    for value in values:
        value.encode()  # a lone surrogate is an error
    return values


def _owner(name: str) -> str:
    return name.partition(".")[0]


def read_used(path: Path) -> dict[str, int]:
    """Reads a list of names in use: `{"symbols": [{"symbol": "jnp.where", "files": 12}, ...]}`.

    Returns: the full names, each with its number of files.
    """
    try:
        symbols = json.loads(path.read_text(encoding="utf-8"))["symbols"]
        return {expand_alias(symbol["symbol"]): int(symbol["files"]) for symbol in symbols}
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except (ValueError, KeyError, TypeError) as error:
        expected = 'expected {"symbols": [{"symbol": "jnp.where", "files": 12}, ...]}'
        raise InputError(f"{path}: {type(error).__name__}: {error}; {expected}.") from None


def expand_alias(name: str) -> str:
    """A name with its module in full.

    >>> expand_alias("jnp.where"), expand_alias("jax.tree.map"), expand_alias("grain.Batch")
    ('jax.numpy.where', 'jax.tree.map', 'grain.python.Batch')
    """
    first, dot, rest = name.partition(".")
    if first == "grain" and rest in GRAIN_PYTHON:
        return f"grain.python.{rest}"
    return f"{ALIASES.get(first, first)}{dot}{rest}"


def find_own(packages: Iterable[str], recorded: Collection[str]) -> set[str]:
    return set(packages).difference(recorded)
