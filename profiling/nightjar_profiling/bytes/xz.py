"""What do xz-compressed bytes hold, when it may be much, or more than anybody should read?

In: the bytes of a file. Out: what they decompress to, whole, in pieces, or as the rows of a CSV file. A CSV file of
hundreds of megabytes is read piece by piece: fresh memory for all of its text would cost as much time as its numbers.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl

from nightjar_profiling.errors import InputError

MAGIC = b"\xfd7zXZ"
PIECE_BYTES = 4 << 20  # of text at a time, so that it stays in the processor's cache
# xz packs zeros 6,900 times smaller; of the real archives HLO 31 times and CSV 12 times.
LARGEST_RATIO, FREE_BYTES = 300, 64 << 20
QUOTE = ord('"')


def decompress(data: bytes, where: str, largest_bytes: int) -> bytes:
    """Decompresses xz, but no more than a limit.

    Raises:
        InputError: not xz, truncated, or larger.
    """
    return b"".join(decompress_pieces(data, where, largest_bytes))


def decompress_pieces(data: bytes, where: str, largest_bytes: int) -> Iterator[bytes]:
    """Decompresses xz piece by piece, but no more than the limit, nor than what so many bytes of a real file hold.

    Raises:
        InputError: not xz, truncated, or larger.
    """
    largest_bytes = min(largest_bytes, FREE_BYTES + LARGEST_RATIO * len(data))
    decoder, size, given = lzma.LZMADecompressor(), 0, data
    while not decoder.eof:
        try:
            piece = decoder.decompress(given, max_length=PIECE_BYTES)
        except lzma.LZMAError as error:
            raise InputError(f"{where}: not xz: {error}.", "the file is damaged: make the archive again") from None
        if not piece and decoder.needs_input:
            raise InputError(f"{where}: truncated: the xz data ends early.", "make the archive again")
        size, given = size + len(piece), b""
        if size > largest_bytes:
            raise InputError(f"{where}: more than {largest_bytes} bytes when decompressed.", "is the file a zip bomb?")
        yield piece


def read_csv(data: bytes, where: str, largest_bytes: int, columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Reads columns of a CSV file in xz.

    Raises:
        InputError: not xz, truncated, or larger than the limit.
        pl.exceptions.PolarsError: no CSV, a column is missing, or holds something else.
    """
    header, parts = b"", list[pl.DataFrame]()
    for rows in cut_at_rows(one_ahead(decompress_pieces(data, where, largest_bytes))):
        text = b"".join([header, *rows])
        parts.append(pl.read_csv(text, columns=list(columns), schema_overrides=columns, infer_schema_length=0))
        header = header or text[: text.find(b"\n") + 1]
    if not parts:
        raise pl.exceptions.NoDataError("it is empty")
    return pl.concat(parts, rechunk=True)


def one_ahead(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same pieces; while one is used, a thread makes the next."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, pieces, None)
        while (piece := coming.result()) is not None:
            coming = pool.submit(next, pieces, None)
            yield piece


def cut_at_rows(pieces: Iterable[bytes]) -> Iterator[list[bytes | memoryview]]:
    """The same bytes, cut where a row ends, at a line's end outside of quotes; each part in one or several pieces.

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
