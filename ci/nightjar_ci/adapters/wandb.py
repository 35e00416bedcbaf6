"""Reader for the history of an offline run of Weights & Biases (`wandb/offline-run-*/run-*.wandb`).

In: a file. Out: a record for each logged step with the logged names; nested names are joined with dots.

Source: wandb/sdk/internal/datastore.py (LevelDB's log format with a header of its own);
wandb/proto/wandb_internal.proto, messages Record, HistoryRecord and HistoryItem.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nightjar_ci.adapters.protobuf import bytes_of, integer_of, parse_message
from nightjar_ci.adapters.records import CutFileError, Record, read_file
from nightjar_ci.errors import InputError

_MAGIC = b":W&B"
_HEADER = 7  # bytes of the file's header, and of each part's
_BLOCK = 32768
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY, _ITEM, _STEP = 2, 1, 2  # fields of Record and HistoryRecord
_KEY, _NESTED, _JSON = 1, 2, 16  # fields of HistoryItem
_KILLED = "its writer may have been killed before it closed the file"


def read_wandb(path: Path, *, left_in: Path | None = None) -> Iterator[Record]:
    """The logged steps, in file order."""
    for number, data in enumerate(_read_records(path, read_file(path, left_in)), start=1):
        source = f"{path}: record {number}"
        try:
            for history in bytes_of(parse_message(data), _HISTORY):
                yield Record(source=source, fields=_read_history(history))
        except (ValueError, IndexError) as error:
            raise InputError(f"{source}: not a valid W&B record: {error}.") from None


def _read_history(data: bytes) -> dict[str, Any]:
    fields = parse_message(data)
    values: dict[str, Any] = {}
    for item in map(parse_message, bytes_of(fields, _ITEM)):
        name = ".".join(
            part.decode("utf-8", errors="replace") for part in (*bytes_of(item, _KEY), *bytes_of(item, _NESTED))
        )
        values[name] = json.loads(next(bytes_of(item, _JSON), b"null"))
    step = integer_of(parse_message(next(bytes_of(fields, _STEP), b"")), 1)
    values.setdefault("step", values.get("_step", step))
    return values


def _read_records(path: Path, data: bytes) -> Iterator[bytes]:
    """The records of the log; one that is longer than a block comes in parts."""
    if not data.startswith(_MAGIC):
        raise InputError(f"{path}: not a file of W&B.", "pass wandb/offline-run-*/run-*.wandb")
    offset, whole = _HEADER, b""
    while offset < len(data):
        if (left := _BLOCK - offset % _BLOCK) < _HEADER:
            offset += left  # padding
            continue
        if len(data) - offset < _HEADER:
            raise CutFileError(f"{path}: byte {offset}: the file is incomplete.", _KILLED)
        checksum, length, kind = struct.unpack_from("<IHB", data, offset)
        part = data[offset + _HEADER : offset + _HEADER + length]
        if len(part) < length:
            raise CutFileError(f"{path}: byte {offset}: the file is incomplete.", _KILLED)
        if zlib.crc32(part, zlib.crc32(bytes([kind]))) != checksum:
            raise InputError(f"{path}: byte {offset}: damaged: its checksum is wrong.")
        offset += _HEADER + length
        whole += part
        if kind in (_WHOLE, _LAST):
            yield whole
            whole = b""
    if whole:
        raise CutFileError(f"{path}: the file is incomplete.", _KILLED)
