"""A capture that is being made: it takes the place of an earlier one when it is whole, or not at all."""

from dataclasses import replace
from pathlib import Path

import pytest

from nightjar_profiling.capture_folder.manifest import write_manifest
from nightjar_profiling.errors import InputError
from nightjar_profiling.pipeline.staging import NEW, OLD, find_place, making
from tests.profiling.capture_folder.test_manifest import MANIFEST


def write_capture(folder: Path, text: str) -> None:
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    (folder / "raw" / "rank0000.xplane.pb").write_text(text)
    (folder / "profile.json").write_text(text)
    write_manifest(folder, MANIFEST)


def fail(folder: Path, error: str) -> None:
    """A capture of which no report can be made, since an error comes before."""
    with making(folder) as new:
        (new / "raw" / "rank0000.xplane.pb").write_text("new")
        write_manifest(new, MANIFEST)
        raise OSError(error)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


WHOLE = ["manifest.json", "profile.json", "raw"]


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "thesis.txt").write_text("precious")
    with pytest.raises(InputError, match="not empty, and not a capture"), making(tmp_path):
        pass
    assert (tmp_path / "raw" / "thesis.txt").read_text() == "precious"


def test_an_earlier_capture_makes_way_for_a_whole_one_and_other_files_stay(tmp_path: Path) -> None:
    write_capture(tmp_path, "old")
    (tmp_path / "exports").mkdir()
    (tmp_path / "mine.txt").write_text("stays")
    with making(tmp_path) as new:
        write_capture(new, "new")
        assert (tmp_path / "profile.json").read_text() == "old"
    assert names(tmp_path) == sorted([*WHOLE, "mine.txt"])
    assert (tmp_path / "raw" / "rank0000.xplane.pb").read_text() == "new"


def test_a_raw_trace_of_which_no_report_could_be_made_is_kept_until_the_next_capture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_capture(tmp_path, "old")
    with pytest.raises(OSError, match="full"):
        fail(tmp_path, "full")
    assert (tmp_path / "failed" / "raw" / "rank0000.xplane.pb").read_text() == "new"
    assert f"nightjar-profiling report {tmp_path / 'failed'}" in capsys.readouterr().err
    with making(tmp_path) as new:
        write_capture(new, "newer")
    assert names(tmp_path) == WHOLE


def test_a_capture_goes_back_when_a_file_cannot_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_capture(tmp_path, "old")
    rename = Path.rename

    def failing(source: Path, target: Path) -> Path:
        if NEW in str(source) and source.name == "profile.json":
            raise OSError("stale file handle")
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="stale"), making(tmp_path) as new:
        write_capture(new, "new")
    assert (tmp_path / "profile.json").read_text() == "old"
    assert (tmp_path / "raw" / "rank0000.xplane.pb").read_text() == "old"
    assert not list(tmp_path.glob(f"{OLD}*"))


def test_an_earlier_capture_comes_back_after_a_kill_and_stays_where_the_new_one_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_capture(tmp_path / f"{OLD}x", "old")
    (tmp_path / ".nightjar-unfinished").touch()
    with pytest.raises(OSError, match="full"), making(tmp_path):
        raise OSError("full")
    assert (tmp_path / "profile.json").read_text() == "old"
    assert names(tmp_path) == WHOLE
    assert f"the earlier capture in {tmp_path} stays as it was." in capsys.readouterr().err


def test_where_there_is_no_earlier_capture_the_raw_trace_lies_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full"):
        fail(tmp_path / "c", "full")
    assert names(tmp_path / "c") == ["manifest.json", "raw"]
    assert (tmp_path / "c" / "raw" / "rank0000.xplane.pb").read_text() == "new"


def test_two_cannot_write_into_one_folder_and_the_second_changes_nothing(tmp_path: Path) -> None:
    with making(tmp_path / "c") as new:
        with pytest.raises(InputError, match="another process is writing a capture there"), making(tmp_path / "c"):
            pass
        write_capture(new, "first")
    assert (tmp_path / "c" / "profile.json").read_text() == "first"


def test_a_folder_of_which_nothing_came_is_not_left_behind(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="full"), making(tmp_path / "a" / "c"):
        raise OSError("full")
    assert not (tmp_path / "a" / "c").exists()


def test_a_failed_run_does_not_replace_a_good_capture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_capture(tmp_path, "good")
    for text in ("bad", "worse"):
        with making(tmp_path) as new:
            write_capture(new, text)
            write_manifest(new, replace(MANIFEST, exit_code=1))
            assert find_place(tmp_path, new) == tmp_path / "failed"
        assert (tmp_path / "profile.json").read_text() == "good"
        assert (tmp_path / "failed" / "profile.json").read_text() == text
    assert f"the earlier capture in {tmp_path} stays as it was." in capsys.readouterr().err
    with making(tmp_path) as new:
        write_capture(new, "better")
    assert (tmp_path / "profile.json").read_text() == "better"


def test_a_failed_run_replaces_that_of_another(tmp_path: Path) -> None:
    for text in ("bad", "worse"):
        with making(tmp_path) as new:
            write_capture(new, text)
            write_manifest(new, replace(MANIFEST, exit_code=-2))
    assert (tmp_path / "profile.json").read_text() == "worse"
    assert names(tmp_path) == WHOLE


def test_a_folder_of_somebody_else_is_not_where_a_failed_capture_goes(tmp_path: Path) -> None:
    write_capture(tmp_path, "old")
    (tmp_path / "failed").mkdir()
    (tmp_path / "failed" / "thesis.txt").write_text("precious")
    with pytest.raises(FileExistsError, match="a failed capture goes there"):
        _make_failed(tmp_path)
    assert (tmp_path / "failed" / "thesis.txt").read_text() == "precious"
    assert names(tmp_path) == sorted([*WHOLE, "failed"])


def _make_failed(folder: Path) -> None:
    with making(folder) as new:
        write_capture(new, "new")
        write_manifest(new, replace(MANIFEST, exit_code=1))
