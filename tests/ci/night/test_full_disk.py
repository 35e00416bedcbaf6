"""Nights on a disk that runs full: who is ended, what goes on, and what a resumed night finds."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from nightjar_ci.environments.prepare import Environments
from nightjar_ci.errors import NightjarError
from nightjar_ci.formats.night_folder import job_folder, read_night
from nightjar_ci.night.matrix import read_matrix
from nightjar_ci.night.run import run_night
from nightjar_ci.settings import read_settings
from nightjar_ci.store import open_store
from tests.ci.jobs import GOOD, python, write_matrix
from tests.ci.night.test_run import FILL
from tests.ci.small_disk import mount_disk
from tests.machine import asks


@pytest.fixture
@asks("mount")
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mount_disk(tmp_path / "disk", "2m") as folder:
        yield folder


@pytest.mark.parametrize("kind", ["train", "test"])
def test_a_job_that_fills_the_disk_takes_no_other_with_it(small_disk: Path, tmp_path: Path, kind: str) -> None:
    store = open_store(read_settings({"NIGHTJAR_STATE_DIR": str(small_disk)}))
    commands = {"first": python(GOOD), "full": python(FILL), "starved": python(GOOD)}
    folder = small_disk / "night"
    night = run_night(read_matrix(write_matrix(tmp_path / "m.toml", commands, kind=kind)), folder, store=store)
    states = {outcome.job: outcome.state for outcome in night.jobs}
    assert states == {"first": "completed", "full": "failed", "starved": "completed"}
    assert "the disk is full: it wrote 1." in (night.jobs[1].message or "")
    assert not (job_folder(folder, "full") / "big").exists()
    assert len(store.history("starved", "loss")) == 1
    store.close()


def test_a_disk_that_others_fill_ends_the_night_and_a_resumed_one_goes_on(small_disk: Path, tmp_path: Path) -> None:
    store = open_store(read_settings({"NIGHTJAR_STATE_DIR": str(small_disk)}))
    elsewhere = f"file = open({str(small_disk / 'big')!r}, 'wb', 0)\nwhile True: file.write(b'x' * 65536)"
    commands = {"first": python(GOOD), "full": python(elsewhere), "starved": python(GOOD)}
    folder = small_disk / "night"
    with pytest.raises(NightjarError) as caught:
        run_night(read_matrix(write_matrix(tmp_path / "m.toml", commands)), folder, store=store)
    assert caught.value.exit_code == 3
    assert "disk" in f"{caught.value} {caught.value.hint}"
    kept = read_night(folder)  # as it was before the disk was full: whole, and not finished
    assert [(one.job, one.state) for one in kept.jobs] == [("first", "completed")]
    assert len(store.history("first", "loss")) == 1
    (small_disk / "big").unlink()
    matrix = read_matrix(write_matrix(tmp_path / "m.toml", {**commands, "full": python(GOOD)}))
    night = run_night(matrix, folder, store=store, resume=True)
    assert {one.job: one.state for one in night.jobs} == dict.fromkeys(commands, "completed")
    assert len(store.history("starved", "loss")) == 1
    store.close()


def test_a_disk_that_is_full_where_environments_are_made_stops_only_its_job(small_disk: Path, tmp_path: Path) -> None:
    (small_disk / "ballast").write_bytes(b"x" * 2**20)
    (small_disk / "state").mkdir()
    with contextlib.suppress(OSError), (small_disk / "more").open("wb", 0) as file:
        while True:
            file.write(b"x" * 4096)
    full = read_settings({"NIGHTJAR_STATE_DIR": str(small_disk / "state")})
    (tmp_path / "lock.txt").write_text("six==1.17.0\n")
    path = write_matrix(tmp_path / "m.toml", {"a": python(GOOD), "b": python(GOOD)})
    place = f'name = "a"\nenvironment = "uv:{tmp_path / "lock.txt"}"'
    path.write_text(path.read_text().replace('name = "a"', place))
    night = run_night(read_matrix(path), tmp_path / "night", environments=Environments(full))
    assert [outcome.state for outcome in night.jobs] == ["not_started", "completed"]
    assert "No space left on device" in (night.jobs[0].message or "")
