"""Validated reading and atomic writing of TOML and JSON files.

In: a path, a `StrictModel` and the schema's `name/version`. Out: the validated model, or an `InputError` that names
the file, the key, the value and the nearest valid key. TOML and JSON follow the same rules. JSON is written atomically:
a killed process leaves no partial file.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import glob
import json
import os
import re
import secrets
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import pydantic_core
from pydantic import BaseModel, ConfigDict

from nightjar_ci.errors import InputError, SchemaError
from nightjar_ci.untrusted.files import read_untrusted

_UNFINISHED = ".unfinished"
_SWEPT_AFTER_S = 3600.0  # no writer takes as long
Model = TypeVar("Model", bound=BaseModel)


class StrictModel(BaseModel):
    """The base of all documents: frozen; unknown keys are errors; non-finite numbers are written as strings."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


def read_document(path: Path, model: type[Model], schema: str | None = None, *, left_in: Path | None = None) -> Model:
    """Reads and validates a TOML (by suffix) or JSON document.

    Args:
        schema: the expected schema, such as `nightjar.run/1`; None for state of one program, which has none (files made
            before 0.1.0 have one, which is left out).
        left_in: folder of the job that wrote the file, which is then opened as an untrusted one; None for files of
            ours or the user's.
    """
    data = _parse(path, left_in)
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected an object, found {type(data).__name__}.")
    if schema is None:
        data.pop("schema", None)
    else:
        _check_schema(path, data.get("schema"), schema)
    try:
        return model.model_validate(data)
    except pydantic.ValidationError as error:
        raise _explain(path, model, error) from None


def write_json(path: Path, document: BaseModel) -> None:
    write_text(path, document.model_dump_json(by_alias=True, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a file atomically and durably: when this returns, a power cut leaves the new file, before it the old one.

    It goes to a temporary file in the same folder, to the disk, and to its name by a rename. Leftovers of the file's
    killed writers that are older than an hour are removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_UNFINISHED}")
    try:
        with unfinished.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        _sync_folder(path.parent)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    _sweep(path)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # not supported, as on some network file systems
            raise
    finally:
        os.close(descriptor)


def _sweep(path: Path) -> None:
    """Removes the leftovers of killed writers of a file."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*{_UNFINISHED}"):
        with contextlib.suppress(OSError):
            if time.time() - left.lstat().st_mtime > _SWEPT_AFTER_S:
                left.unlink()


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file without its own schema."""
    if path.suffix != ".toml":
        raise InputError(f"{path}: expected a TOML file, NAME.toml.")
    table: dict[str, Any] = _parse(path, None)
    return table


def read_json(path: Path) -> Any:
    if path.suffix != ".json":
        raise InputError(f"{path}: expected a JSON file, NAME.json.")
    return _parse(path, None)


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
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise InputError(f"{path}: not valid TOML: {error}.") from None
    try:
        return pydantic_core.from_json(text)
    except ValueError as error:
        hint = None
        if "EOF" in str(error):
            hint = "the file is incomplete: was its writer killed, or the disk full?"
        raise InputError(f"{path}: not valid JSON: {error}.", hint) from None


def _check_schema(path: Path, schema: object, expected: str) -> None:
    if schema == expected:
        return
    name, _, supported = expected.partition("/")
    other = None
    if isinstance(schema, str):
        other = re.fullmatch(rf"{re.escape(name)}/([0-9]{{1,9}})", schema)
    if other is not None:
        hint = "convert it, or use the nightjar-ci that wrote it"
        if int(other[1]) > int(supported):
            hint = "upgrade nightjar-ci"
        raise SchemaError(f"{path}: schema is {schema!r}, this version reads {expected!r}.", hint)
    shown = repr(schema)
    if len(shown) > 80:
        shown = f"{shown[:77]}..."
    raise SchemaError(f"{path}: schema is {shown}, expected {expected!r}.")


def _explain(path: Path, model: type[BaseModel], error: pydantic.ValidationError) -> InputError:
    problems = error.errors(include_url=False)
    for problem in problems:  # a misspelt key is also a missing one: the misspelling says more
        if problem["type"] == "extra_forbidden":
            return _explain_unknown_key(path, model, problem["loc"])
    places = [problem["loc"] for problem in problems]
    problems = [  # a list whose items are wrong counts as empty, too
        problem
        for problem, place in zip(problems, places, strict=True)
        if not any(other[: len(place)] == place and other != place for other in places)
    ]
    first = problems[0]
    where = f"{path}: {_render_location(first['loc'])}" if first["loc"] else str(path)
    if first["type"] == "missing":
        return InputError(f"{where}: this key is missing.")
    if first["type"] == "value_error" and isinstance(first["input"], dict):  # keys that do not go together
        return InputError(f"{where}: {first['ctx']['error']}.")
    value = repr(first["input"])
    if len(value) > 80:
        value = f"{value[:77]}..."
    if len(problems) > 1:
        value += f"; {_render_location(problems[1]['loc'])} is not valid either"
    expected = first["msg"].removeprefix("Value error, ")
    if first["type"] in ("tuple_type", "list_type"):
        expected = "expected a list"
        if isinstance(first["input"], str) and first["loc"][-1] == "command":
            expected += f" of strings, such as {json.dumps(first['input'].split())}"
    return InputError(f"{where}: {expected}, found {value}.")


def _explain_unknown_key(path: Path, model: type[BaseModel], location: tuple[int | str, ...]) -> InputError:
    *parents, key = map(str, location)
    valid = sorted(_keys_at(model, location[:-1]))
    prefix = f"{path}: {_render_location(location[:-1])}: " if parents else f"{path}: "
    hint = None
    if near := difflib.get_close_matches(key, valid, n=1):
        hint = f"did you mean {near[0]!r}?"
    return InputError(f"{prefix}unknown key {key!r}: expected one of {', '.join(valid)}.", hint)


def _render_location(location: Iterable[int | str]) -> str:
    """A location in a document; items are counted from one.

    >>> _render_location(("job", 2, "name"))
    'job 3.name'
    """
    parts = (f" {part + 1}" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")


def _keys_at(model: type[BaseModel], location: Iterable[int | str]) -> set[str]:
    current = model
    for part in location:
        if isinstance(part, int):
            continue
        field = next((f for n, f in current.model_fields.items() if (f.alias or n) == part), None)
        nested = None if field is None else _model_in(field.annotation)
        if nested is None:
            return set()
        current = nested
    return {field.alias or name for name, field in current.model_fields.items()}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((m for argument in getattr(annotation, "__args__", ()) if (m := _model_in(argument))), None)
