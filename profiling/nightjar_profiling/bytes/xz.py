"""Decompression of xz data of limited size.

In: the bytes of a file. Out: the decompressed bytes, as a whole, in pieces, or as the rows of a CSV file. A CSV file of
hundreds of megabytes is read in pieces, since allocating memory for its whole text would take as long as parsing it.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl

from nightjar_profiling.bytes.archive import ZIP_BOMB
from nightjar_profiling.errors import InputError

MAGIC = b"\xfd7zXZ"
PIECE_BYTES = 4 << 20  # of text at a time, so that it stays in the CPU cache
# xz compresses zeros 6,900-fold; in real archives HLO 31-fold and CSV 12-fold.
LARGEST_RATIO, FREE_BYTES = 300, 64 << 20
DAMAGED = "the file is damaged: create the archive again"
QUOTE = ord('"')


def decompress(data: bytes, where: str, largest_bytes: int) -> bytes:
    """Decompresses xz data up to a limit."""
    return b"".join(decompress_pieces(data, where, largest_bytes))


def decompress_pieces(data: bytes, where: str, largest_bytes: int) -> Iterator[bytes]:
    """Decompresses xz data piece by piece, up to the limit and up to `LARGEST_RATIO` times its size."""
    largest_bytes = min(largest_bytes, FREE_BYTES + LARGEST_RATIO * len(data))
    decoder, size, compressed = lzma.LZMADecompressor(), 0, data
    while not decoder.eof:
        try:
            piece = decoder.decompress(compressed, max_length=PIECE_BYTES)
        except lzma.LZMAError as error:
            raise InputError(f"{where}: not valid xz data: {error}.", DAMAGED) from None
        if not piece and decoder.needs_input:
            raise InputError(f"{where}: truncated: the xz data ends early.", DAMAGED)
        size, compressed = size + len(piece), b""
        if size > largest_bytes:
            raise InputError(f"{where}: more than {largest_bytes} bytes when decompressed.", ZIP_BOMB)
        yield piece


def read_csv(data: bytes, where: str, largest_bytes: int, columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Reads columns of an xz-compressed CSV file."""
    header, parts = b"", list[pl.DataFrame]()
    for rows in cut_at_rows(read_ahead(decompress_pieces(data, where, largest_bytes))):
        text = b"".join([header, *rows])
        parts.append(pl.read_csv(text, columns=list(columns), schema_overrides=columns, infer_schema_length=0))
        header = header or text[: text.find(b"\n") + 1]
    if not parts:
        raise pl.exceptions.NoDataError("the file is empty")
    return pl.concat(parts, rechunk=True)


def read_ahead(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same pieces; a thread produces the next one while the caller uses the current one."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(next, pieces, None)
        while (piece := following.result()) is not None:
            following = pool.submit(next, pieces, None)
            yield piece


def cut_at_rows(pieces: Iterable[bytes]) -> Iterator[list[bytes | memoryview]]:
    """The same bytes, split at the ends of rows (line breaks outside of quotes); each part is a list of pieces.

    >>> [b"".join(part) for part in cut_at_rows([b'a,b\\n1,"x', b'\\ny"\\n2,', b'z'])]
    [b'a,b\\n', b'1,"x\\ny"\\n', b'2,z']
    """
    waiting, quotes = list[bytes | memoryview](), 0
    for piece in pieces:
        marks = np.frombuffer(piece, np.uint8) == QUOTE
        end = piece.rfind(b"\n") + 1
        before = int(np.count_nonzero(marks[:end]))
        if end and (quotes + before) % 2 == 0:
            yield [*waiting, memoryview(piece)[:end]]
            waiting, quotes = [piece[end:]], int(np.count_nonzero(marks[end:]))
        else:
            waiting.append(piece)
            quotes += before + int(np.count_nonzero(marks[end:]))
    if any(waiting):
        yield waiting
