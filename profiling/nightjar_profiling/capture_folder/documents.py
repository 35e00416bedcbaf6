"""Checked reading and atomic writing of the JSON files of a capture.

In: a path and the schema's `name/version`. Out: the object, or an `InputError` that names the file and the value. Files
are written atomically, so a killed process leaves no partial file.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from nightjar_profiling.errors import InputError, SchemaError

Kind = TypeVar("Kind")
_JSON_NAMES: dict[type, str] = {list: "array", dict: "object"}


def read_json(path: Path, schema: str) -> dict[str, Any]:
    """Reads a JSON object whose `schema` key is the expected one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file.", "is the folder a capture?") from None
    except NotADirectoryError:
        hint = "of a trace that another program made, `nightjar-profiling report` makes one"
        raise InputError(f"{path.parent}: a file, expected the folder of a capture.", hint) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.", "may you read this folder?") from None
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON: {error}.", "was its writer killed, or the disk full?") from None
    written_schema = data.get("schema") if isinstance(data, dict) else None
    if written_schema != schema:
        raise _wrong_schema(path, written_schema, schema)
    return dict(data)


def expect(path: Path, key: str, value: Any, kind: type[Kind]) -> Kind:
    """The value of a key, which must be of a type."""
    if not isinstance(value, kind):
        raise InputError(f"{path}: {key!r} is {value!r}, expected a JSON {_JSON_NAMES[kind]}.")
    return value


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Writes a document as JSON, whole or not at all."""
    write_text(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a text, whole or not at all."""
    write_bytes(path, text.encode("utf-8", "replace"))


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file through a temporary neighbour and a rename, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # the error of a full disk does not name the file
            error.filename = str(path)
        raise


def _wrong_schema(path: Path, written_schema: object, expected: str) -> SchemaError:
    name, _, version = expected.partition("/")
    if isinstance(written_schema, str) and written_schema.startswith(f"{name}/"):
        number = written_schema[len(name) + 1 :]
    else:
        number = ""
    if number.isdigit():
        newer = int(number) > int(version)
        if newer:
            hint = "upgrade nightjar-profiling"
        else:
            hint = "use the nightjar-profiling that wrote it"
        return SchemaError(f"{path}: schema is {written_schema!r}, this version reads {expected!r}.", hint)
    return SchemaError(f"{path}: schema is {written_schema!r}, expected {expected!r}.")
