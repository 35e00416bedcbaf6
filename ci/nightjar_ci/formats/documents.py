"""Validated reading and atomic writing of TOML and JSON files.

In: a path, a pydantic model and the schema's `name/version`. Out: the validated model, or an `InputError` that names
the file, the place in it, the value and the nearest valid key. TOML and JSON are read alike. JSON is written
atomically, so a killed process leaves no partial file.
"""

from __future__ import annotations

import difflib
import os
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import pydantic_core
from pydantic import BaseModel

from nightjar_ci.errors import InputError, SchemaError
from nightjar_ci.untrusted.files import read_untrusted

Model = TypeVar("Model", bound=BaseModel)


def read_document(path: Path, model: type[Model], schema: str, *, left_in: Path | None = None) -> Model:
    """Reads and validates a TOML (by suffix) or JSON document.

    Args:
        path: the file.
        model: its pydantic model; unknown keys must be forbidden there.
        schema: the schema read here, such as `nightjar.run/1`.
        left_in: folder of the job that left the file, which is then opened as an untrusted one; None where we or the
            user wrote it.

    Raises:
        InputError: missing, unreadable, truncated, or wrong in a key or type.
        SchemaError: the document names a newer or another schema.
    """
    data = _parse(path, left_in)
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected an object with a 'schema' key, found {type(data).__name__}.")
    _check_schema(path, data.get("schema"), schema)
    try:
        return model.model_validate(data)
    except pydantic.ValidationError as error:
        raise _explain(path, model, error) from None


def write_json(path: Path, document: BaseModel) -> None:
    """Writes a document as JSON, whole or not at all.

    Raises:
        OSError: the disk is full or the folder cannot be written; an earlier file stays as it was.
    """
    write_text(path, document.model_dump_json(by_alias=True, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a file through a temporary neighbour and a rename, so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _parse(path: Path, left_in: Path | None) -> Any:
    try:
        if left_in is None:
            text = path.read_text(encoding="utf-8")
        else:
            text = read_untrusted(left_in, path.relative_to(left_in)).decode("utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file.") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: cannot be read: {error}.") from None
    try:
        return tomllib.loads(text) if path.suffix == ".toml" else pydantic_core.from_json(text)
    except (tomllib.TOMLDecodeError, ValueError) as error:
        hint = "the file ends too early: was its writer killed, or the disk full?" if "EOF" in str(error) else None
        raise InputError(f"{path}: not valid {'TOML' if path.suffix == '.toml' else 'JSON'}: {error}.", hint) from None


def _check_schema(path: Path, found: object, expected: str) -> None:
    if found == expected:
        return
    name, _, version = expected.partition("/")
    if isinstance(found, str) and found.startswith(f"{name}/") and found[len(name) + 1 :].isdigit():
        newer = int(found[len(name) + 1 :]) > int(version)
        hint = "upgrade nightjar-ci" if newer else "convert it, or use the nightjar-ci that wrote it"
        raise SchemaError(f"{path}: schema is {found!r}, this version reads {expected!r}.", hint)
    raise SchemaError(f"{path}: schema is {found!r}, expected {expected!r}.")


def _explain(path: Path, model: type[BaseModel], error: pydantic.ValidationError) -> InputError:
    found = error.errors(include_url=False)  # a misspelt key is also a missing one: the misspelling says more
    first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    place = _place(first["loc"])
    if first["type"] == "extra_forbidden":
        key = str(first["loc"][-1])
        known = sorted(_keys_at(model, first["loc"][:-1]))
        where = _place(first["loc"][:-1])
        near = difflib.get_close_matches(key, known, n=1)
        return InputError(
            f"{path}: {where + ': ' if where else ''}unknown key {key!r}: expected one of {', '.join(known)}.",
            f"did you mean {near[0]!r}?" if near else None,
        )
    if first["type"] == "missing":
        return InputError(f"{path}: {place}: this key is missing.")
    shown = repr(first["input"])
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return InputError(f"{path}: {place}: {first['msg']}, found {shown}{more}.")


def _place(location: Iterable[int | str]) -> str:
    text = ""
    for part in location:
        text += f" {part + 1}" if isinstance(part, int) else f"{'.' if text else ''}{part}"
    return text


def _keys_at(model: type[BaseModel], location: Iterable[int | str]) -> set[str]:
    """The keys that a model (or the nested model at a location) accepts."""
    current: type[BaseModel] | None = model
    for part in location:
        if current is None or isinstance(part, int):
            continue
        field = next((f for n, f in current.model_fields.items() if (f.alias or n) == part), None)
        current = _model_in(field.annotation) if field is not None else None
    return {field.alias or name for name, field in current.model_fields.items()} if current is not None else set()


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for argument in getattr(annotation, "__args__", ()) if (m := _model_in(argument))), None)
