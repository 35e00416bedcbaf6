"""Jobs that use up a disk: who is ended, what stays, and a disk that is full for another reason."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nightjar_ci.executors.local import DiskGuard, FilledDiskError
from tests.ci.small_disk import mount_disk
from tests.machine import asks


@pytest.fixture
@asks("mount")
def disk(tmp_path: Path) -> Iterator[Path]:
    with mount_disk(tmp_path / "disk", "4m") as folder:
        yield folder


def test_a_job_that_takes_the_last_room_is_told_what_it_wrote_and_its_logs_stay(disk: Path) -> None:
    job = disk / "job"
    (job / "checkpoint").mkdir(parents=True)
    (job / "stdout.log").write_text("step 1")
    guard = DiskGuard(job)
    guard.check()
    (job / "checkpoint" / "weights").write_bytes(b"x" * (3900 << 10))
    (job / "link").symlink_to(disk)
    with pytest.raises(FilledDiskError, match=r"it wrote 3\.8 MiB into its folder, and the disk has 0\.\d MiB left"):
        guard.check()
    guard.free()
    assert [path.name for path in job.iterdir()] == ["stdout.log"]
    guard.check()


def test_a_job_is_not_ended_for_what_others_wrote(disk: Path) -> None:
    job = disk / "job"
    job.mkdir()
    guard = DiskGuard(job)
    (disk / "other").write_bytes(b"x" * (3900 << 10))
    guard.check()


def test_a_disk_that_was_nearly_full_before_leaves_a_job_what_there_is(disk: Path) -> None:
    (disk / "other").write_bytes(b"x" * (3 << 20))
    job = disk / "job"
    job.mkdir()
    guard = DiskGuard(job)
    (job / "result.json").write_bytes(b"x" * (512 << 10))
    guard.check()
