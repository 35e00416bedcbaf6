"""Compact binary data for embedding in an HTML page.

In: JSON data in which NumPy arrays represent columns of numbers. Out: base64 text of a zlib stream, which browsers
inflate natively (`DecompressionStream`). The stream holds the length of the JSON text (4 bytes, little endian), the
text, padding to 8 bytes, and the columns, each 8-byte aligned; in the JSON a column is `{"$": [type, offset, length]}`,
with its offset from the first column. Base64 contains no `<`, so it cannot end a script element.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

ARRAY_TYPES = {"float64": "Float64Array", "int32": "Int32Array", "uint8": "Uint8Array"}


def pack(document: dict[str, Any]) -> str:
    """The packed text, which `inflate` in page/data.js reads."""
    columns = _Columns()
    text = json.dumps(document, default=columns.add, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "replace"
    )
    head = len(text).to_bytes(4, "little") + text
    return base64.b64encode(zlib.compress(head + _padding(head) + bytes(columns.data), 6)).decode("ascii")


def unpack(packed: str) -> dict[str, Any]:
    """The document of a packed text, for tests and for programs that read a report.

    >>> unpack(pack({"a": "é", "b": np.array([1, 2], dtype=np.int32)}))
    {'a': 'é', 'b': array([1, 2], dtype=int32)}
    """
    data = zlib.decompress(base64.b64decode(packed))
    end = 4 + int.from_bytes(data[:4], "little")
    start = end + len(_padding(data[:end]))

    def column(value: dict[str, Any]) -> Any:
        if value.keys() != {"$"}:
            return value
        kind, offset, length = value["$"]
        dtype = next(name for name, array in ARRAY_TYPES.items() if array == kind)
        return np.frombuffer(data, dtype=dtype, count=length, offset=start + offset)

    document: dict[str, Any] = json.loads(data[4:end], object_hook=column)
    return document


class _Columns:
    """The columns of a document, in the order in which JSON reaches them."""

    def __init__(self) -> None:
        self.data = bytearray()

    def add(self, value: object) -> dict[str, list[str | int]]:
        """Stores a column, and returns its reference."""
        if not isinstance(value, np.ndarray):
            raise TypeError(f"not JSON serializable: {value!r}")
        column: NDArray[Any] = value
        offset = len(self.data)
        self.data += column.tobytes()
        self.data += _padding(self.data)
        return {"$": [ARRAY_TYPES[column.dtype.name], offset, len(column)]}


def _padding(data: bytes | bytearray) -> bytes:
    return bytes(-len(data) % 8)
