"""An input that is not understood is named for what it is."""

import gzip
import os
from pathlib import Path

import pytest

from nightjar_profiling.errors import InputError
from nightjar_profiling.readers.detect import SQLITE, XPLANE, find_kind, find_traces


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"<!DOCTYPE html><html></html>", "a text file, expected a trace"),
        (b"step,loss\n1,2\n", "a text file, expected a trace"),
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


def write_log(log: Path, *traces: str) -> None:
    for trace in traces:
        path = log / "plugins" / "profile" / trace
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def named(log: Path) -> list[str]:
    return ["/".join(trace.parts[-2:]).removesuffix(".xplane.pb") for trace in find_traces(log)]


def test_a_log_folder_gives_its_xplane_before_its_json(tmp_path: Path) -> None:
    write_log(tmp_path, "2026/vm.trace.json.gz", "2026/vm.xplane.pb")
    assert named(tmp_path) == ["2026/vm"]


def test_the_hosts_of_a_run_come_by_their_number(tmp_path: Path) -> None:
    write_log(tmp_path, *(f"r/w-{host}.xplane.pb" for host in (10, 9, 1)))
    assert named(tmp_path) == named(tmp_path / "plugins" / "profile" / "r") == ["r/w-1", "r/w-9", "r/w-10"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("2026_05_06_04_47_30/w-1", "2026_05_06_04_48_00/w-0", ["2026_05_06_04_48_00/w-0", "2026_05_06_04_47_30/w-1"]),
        ("2026_05_06_04_47_29/w-1", "2026_05_06_04_48_00/w-0", ["2026_05_06_04_48_00/w-0"]),
        ("2026_05_06_04_47_59/w-0", "2026_05_06_04_48_00/w-0", ["2026_05_06_04_48_00/w-0"]),
    ],
)
def test_different_hosts_that_begin_within_half_a_minute_are_of_one_run(
    first: str, second: str, expected: list[str], tmp_path: Path
) -> None:
    write_log(tmp_path, f"{first}.xplane.pb", f"{second}.xplane.pb")
    assert named(tmp_path) == expected


def test_of_runs_with_names_of_their_own_the_last_written_is_taken(tmp_path: Path) -> None:
    write_log(tmp_path, "b/w.xplane.pb", "a/w.xplane.pb")
    os.utime(tmp_path / "plugins/profile/b/w.xplane.pb", (1e9, 1e9))
    assert named(tmp_path) == ["a/w"]
