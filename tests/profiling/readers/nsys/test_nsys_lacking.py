"""What an nsys export lacks, or has elsewhere than was known: it is said, and the rest is shown."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from nightjar_profiling.errors import InputError
from nightjar_profiling.readers.nsys.nsys_export import read_sqlite
from tests.profiling.nsys_sqlite_builder import SqliteBuilder, training_export
from tests.profiling.readers.nsys.test_nsys_export import EXPECTED, RUN


@pytest.mark.parametrize(
    ("dropped", "message"),
    [
        ("CUPTI_ACTIVITY_KIND_KERNEL", "no GPU work"),
        ("NVTX_EVENTS", "no NVTX ranges"),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", "no CUPTI_ACTIVITY_KIND_RUNTIME"),
        ("StringIds", "no StringIds: kernels, and ranges with registered names, have no name"),
    ],
)
def test_missing_tables_are_in_warnings_and_the_rest_is_shown(tmp_path: Path, dropped: str, message: str) -> None:
    built = training_export()
    del built.tables[dropped]
    raw = read_sqlite(built.write(tmp_path / "a.sqlite"))
    assert any(message in text for text in raw.warnings)
    assert raw.tables["ops"].height == (0 if "KERNEL" in dropped else 6)
    assert raw.tables["kernels"]["launches"].sum() == raw.tables["ops"].height


@pytest.mark.parametrize(
    ("lacking", "name"),
    [
        (["shortName"], "splitk<float>"),
        (["demangledName"], "splitk"),
        (["shortName", "demangledName"], "unnamed kernel"),
    ],
)
def test_a_kernel_that_lacks_a_name_is_in_the_table_of_kernels(tmp_path: Path, lacking: list[str], name: str) -> None:
    built = training_export()
    for row in built.tables["CUPTI_ACTIVITY_KIND_KERNEL"][1::3]:
        row |= dict.fromkeys(lacking)
    kernels = read_sqlite(built.write(tmp_path / "a.sqlite")).tables["kernels"]
    assert dict(kernels.select("kernel", "launches").iter_rows()) == {"gemm<float>": 2, name: 2, "add<float>": 2}


@pytest.mark.parametrize(
    ("column", "message", "ops"),
    [
        ("end", "KERNEL has no column end: its ops are not shown", 0),
        ("correlationId", "KERNEL has no column correlationId: its ops cannot be assigned to their launches", 6),
    ],
)
def test_a_column_that_has_moved_is_named(tmp_path: Path, column: str, message: str, ops: int) -> None:
    built = training_export()
    for row in built.tables["CUPTI_ACTIVITY_KIND_KERNEL"]:
        row[f"{column}V9"] = row.pop(column)
    raw = read_sqlite(built.write(tmp_path / "a.sqlite"))
    assert any(message in text for text in raw.warnings)
    assert raw.tables["ops"].height == ops


@pytest.mark.parametrize("end", [None, "soon"])
def test_a_kernel_without_an_end_is_left_out_and_counted(tmp_path: Path, end: str | None) -> None:
    path = training_export().write(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = ? WHERE rowid = 2", (end,))
    raw = read_sqlite(path)
    assert "a.sqlite: 1 ops have no valid start or end: they are not shown" in raw.warnings
    assert raw.tables["ops"].select(RUN).rows() == [EXPECTED[0], *EXPECTED[2:]]


def test_a_database_without_nsys_tables_is_refused(tmp_path: Path) -> None:
    path = SqliteBuilder().add("songs", title="a").add("artists", name="b").write(tmp_path / "a.sqlite")
    with pytest.raises(InputError, match=r"a\.sqlite: holds no nsys table; its tables: artists, songs\..*nsys export"):
        read_sqlite(path)


@pytest.mark.parametrize(("second", "found"), [("NVIDIA H200", ("NVIDIA H200",)), ("NVIDIA T4", ())])
def test_a_device_is_named_after_equal_gpus_of_its_machine(tmp_path: Path, second: str, found: tuple[str, ...]) -> None:
    built = training_export().add("TARGET_INFO_GPU", id=0, name="NVIDIA H200").add("TARGET_INFO_GPU", id=1, name=second)
    assert read_sqlite(built.write(tmp_path / "a.sqlite")).devices == found


@pytest.mark.parametrize("table", ["META_DATA_EXPORT", "EXPORT_META_DATA"])
def test_a_newer_schema_is_read_and_named_whichever_table_tells_it(tmp_path: Path, table: str) -> None:
    built = training_export()
    for name, value in (("VERSION", "4.1.0"), ("VERSION_MAJOR", "4"), ("VERSION_CKSUM", None)):
        built.add(table, name=f"EXPORT_SCHEMA_{name}", value=value)
    built.add(table, name="EXPORT_PRODUCT_VERSION", value="2027.1")
    raw = read_sqlite(built.write(tmp_path / "a.sqlite"))
    assert raw.warnings[0].startswith(f"a.sqlite: {table}: export schema 4.1.0 (nsys 2027.1) is newer than 3")
    assert raw.tables["ops"].height == 6


@pytest.mark.parametrize("table", ["META_DATA_EXPORT", "EXPORT_META_DATA"])
def test_a_supported_schema_gives_no_warning(tmp_path: Path, table: str) -> None:
    built = training_export().add(table, name="EXPORT_SCHEMA_VERSION", value="3.25.0")
    assert not any("schema" in text for text in read_sqlite(built.write(tmp_path / "a.sqlite")).warnings)
