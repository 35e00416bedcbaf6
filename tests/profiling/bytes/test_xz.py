import io
import lzma

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_profiling.bytes import xz
from nightjar_profiling.errors import InputError

TEXTS = st.lists(st.text(alphabet='ab",\n', max_size=9), min_size=1, max_size=12)


@given(TEXTS, st.integers(1, 40))
def test_a_csv_reads_the_same_in_pieces_of_any_size(texts: list[str], size: int) -> None:
    rows = pl.DataFrame({"unused": texts, "name": [f"x{text}" for text in texts], "id": range(len(texts))})
    text = io.BytesIO()
    rows.write_csv(text)
    columns: dict[str, pl.DataType] = {"name": pl.String(), "id": pl.Int64()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(xz, "PIECE_BYTES", size)
        found = xz.read_csv(lzma.compress(text.getvalue(), preset=0), "a.csv.xz", 1 << 20, columns)
    assert found.equals(rows.select("name", "id"))


def test_an_empty_csv_or_one_without_a_requested_column_is_an_error() -> None:
    for content in (b"", b"other\n1\n"):
        with pytest.raises(pl.exceptions.PolarsError):
            xz.read_csv(lzma.compress(content), "a.csv.xz", 100, {"id": pl.Int64()})


def test_a_truncated_or_too_large_csv_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xz, "PIECE_BYTES", 64)  # so that rows were read before
    data = lzma.compress(b"id\n" + b"1\n" * 999)
    with pytest.raises(InputError, match=r"a\.csv\.xz: truncated"):
        xz.read_csv(data[:-40], "a.csv.xz", 1 << 20, {"id": pl.Int64()})
    with pytest.raises(InputError, match=r"a\.csv\.xz: more than 500 bytes"):
        xz.read_csv(data, "a.csv.xz", 500, {"id": pl.Int64()})


def test_a_zip_bomb_is_not_decompressed_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xz, "PIECE_BYTES", 1 << 10)
    monkeypatch.setattr(xz, "FREE_BYTES", 1 << 12)
    data = lzma.compress(bytes(1 << 20))
    most = (1 << 12) + 300 * len(data)
    with pytest.raises(InputError, match=rf"a\.xz: more than {most} bytes when decompressed.*zip bomb"):
        xz.decompress(data, "a.xz", 1 << 30)
    assert len(xz.decompress(lzma.compress(bytes(1 << 12)), "a.xz", 1 << 30)) == 1 << 12


def test_invalid_or_truncated_xz_data_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = lzma.compress(bytes(range(256)) * 9, check=lzma.CHECK_NONE)
    assert xz.decompress(data, "a.xz", 1 << 20) == bytes(range(256)) * 9
    with pytest.raises(InputError, match=r"a\.xz: not valid xz data"):
        xz.decompress(b"no xz at all", "a.xz", 100)
    for end in (0, 20, len(data) - 1):
        with pytest.raises(InputError, match=r"a\.xz: truncated"):
            xz.decompress(data[:end], "a.xz", 1 << 20)
    monkeypatch.setattr(xz, "PIECE_BYTES", 64)
    with pytest.raises(InputError, match="more than 100 bytes when decompressed"):
        xz.decompress(data, "a.xz", 100)
