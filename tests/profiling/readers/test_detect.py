"""An input that is not understood is named for what it is."""

import gzip
from pathlib import Path

import pytest

from nightjar_profiling.errors import InputError
from nightjar_profiling.readers.detect import SQLITE, XPLANE, find_kind, find_trace


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"<!DOCTYPE html><html></html>", "an HTML page, expected a trace"),
        (b"<?xml version='1.0'?><a/>", "XML, expected a trace"),
        (b"step,loss\n1,2\n", "a text file, expected a trace"),
        (b"NVR\0 report", "a report of Nsight Compute"),
        (b"PAR1....", "a single Parquet file"),
        (b"\xfd7zXZ\0", "a file compressed by xz"),
        (b'{"traceEvents": []}', "JSON, expected a trace: .* hold no HLO"),
        (b"\xef\xbb\xbf [", "JSON, expected a trace"),
        (gzip.compress(b'  {"traceEvents": []}', mtime=0), "JSON, expected a trace"),
        (gzip.compress(b"\x0a\x04abcd", mtime=0), "a gzip file that holds no JSON"),
        (gzip.compress(b"{}" * 50, mtime=0)[:12], "a damaged gzip file"),
    ],
)
def test_what_is_not_a_trace_is_named(data: bytes, what: str, tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(data)
    with pytest.raises(InputError, match=what):
        find_kind(path)


@pytest.mark.parametrize(("data", "kind"), [(b"SQLite format 3\0", SQLITE), (b"\x0a\x10/device:TPU:0", XPLANE)])
def test_a_trace_is_known_by_its_content(data: bytes, kind: object, tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(data)
    assert find_kind(path) == kind


def test_a_log_folder_gives_its_xplane_before_its_json(tmp_path: Path) -> None:
    folder = tmp_path / "plugins" / "profile" / "2026"
    folder.mkdir(parents=True)
    (folder / "vm.trace.json.gz").touch()
    (folder / "vm.xplane.pb").touch()
    assert find_trace(tmp_path) == folder / "vm.xplane.pb"
