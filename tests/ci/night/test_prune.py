"""What is not used for long gives its room back, and nothing else goes."""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from nightjar_ci.cli import main
from nightjar_ci.environments import uv
from nightjar_ci.environments.uv import STAMP, make_pinned
from nightjar_ci.environments.worktree import add_worktree
from nightjar_ci.night.lock import hold_folder
from nightjar_ci.night.matrix import read_matrix
from nightjar_ci.night.prune import Unused, delete, find_unused
from nightjar_ci.night.run import run_night
from nightjar_ci.settings import Settings, read_settings
from nightjar_ci.store import open_store
from tests.called import call
from tests.ci.jobs import python, write_matrix
from tests.ci.local_project import commit_all, git
from tests.ci.nights import make_night, outcome, record

DAY_S = 86_400.0
OLD = "2026-09-01T0300-1a2b"
NOW = datetime.now(UTC)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path)})


def leave(path: Path, days: float, size: int = 100_000) -> Path:
    """A folder with a file in a sub-folder, last written so many days ago."""
    (path / "jobs").mkdir(parents=True)
    (path / "jobs" / "stdout.log").write_bytes(b"x" * size)
    for one in (path / "jobs" / "stdout.log", path / "jobs", path):
        age(one, days)
    return path


def age(path: Path, days: float) -> None:
    os.utime(path, (time.time() - days * DAY_S,) * 2)


def test_what_was_used_within_so_many_days_stays(settings: Settings) -> None:
    old = leave(settings.nights_dir / OLD, 61.5)
    leave(settings.nights_dir / "2026-11-20T0300-1a2b", 59)
    going_on = leave(settings.nights_dir / "2026-08-01T0300-1a2b", 90)
    (going_on / "jobs" / "stderr.log").write_text("")
    bisection = leave(settings.bisections_dir / "b", 70.5)
    trained = leave(settings.baseline_nights_dir / OLD, 80.5)
    found = find_unused(settings, 60, NOW)
    assert [one.path for one in found] == [trained, bisection, old]
    assert all(100_000 <= one.size_bytes <= 120_000 for one in found)
    assert [(NOW - one.last_used).days for one in found] == [80, 70, 61]


def test_the_worktrees_of_a_bisection_that_was_interrupted_go_with_it(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    sha = commit_all(tmp_path / "project")
    bisection = settings.bisections_dir / "b"
    add_worktree(tmp_path / "project", sha, bisection / "stage0" / "000-a" / "tree")
    assert delete(Unused(path=bisection, last_used=NOW, size_bytes=0))
    assert "\n" not in git(tmp_path / "project", "worktree", "list")


def test_deeply_nested_folders_end_no_night_and_are_deleted_once_no_process_runs_it(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "s3cr3t-value")
    nest = "import os; os.chdir(os.environ['NIGHTJAR_OUT']); [(os.mkdir(n), os.chdir(n)) for n in ['%s'] * %d]; "
    leak = "open('f', 'w').write(os.environ['HF_TOKEN']); os.abort()"
    commands = {"deep": python(nest % ("d", 1100) + leak), "too-deep": python(nest % ("x" * 250, 17) + leak)}
    matrix = read_matrix(write_matrix(tmp_path / "m.toml", commands, secrets=["HF_TOKEN"]))
    deep, too_deep = run_night(matrix, settings.nights_dir / OLD).jobs
    assert (deep.state, too_deep.state) == ("killed", "invalid")
    assert Path(settings.nights_dir / OLD / "jobs" / "deep", *["d"] * 1100, "f").read_text() == "***"
    assert find_unused(settings, 1, NOW + timedelta(days=2)) == []
    assert f"warning: {settings.nights_dir / OLD} is kept: " in capsys.readouterr().err
    shutil.rmtree(settings.nights_dir / OLD / "jobs" / "too-deep")
    (unused,) = find_unused(settings, 1, NOW + timedelta(days=2))
    with hold_folder(unused.path):
        assert not delete(unused)
    assert delete(unused)
    assert not unused.path.exists()


def test_an_environment_is_as_old_as_its_last_use(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(prefix: Path, *_: object) -> None:
        (prefix / "module.py").write_text("")
        age(prefix / "module.py", 1000)  # as a wheel has it

    monkeypatch.setattr(uv, "_make", make)
    path = make_pinned("a", ["a==1"], {}, settings.environments_dir)
    assert find_unused(settings, 1, NOW) == []
    age(path / STAMP, 100)
    (unused,) = find_unused(settings, 60, NOW)
    assert unused.path == path
    make_pinned("a", ["a==1"], {}, settings.environments_dir)  # a job asks for it between the two
    assert not delete(unused)
    assert (path / "module.py").is_file()
    age(path / STAMP, 100)
    (unused,) = find_unused(settings, 60, NOW)
    with path.with_suffix(".lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not delete(unused)
    assert delete(unused)
    assert not path.exists()


def test_what_a_kill_leaves_of_an_environment_is_made_anew(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(uv, "_make", lambda prefix, *_: made.append(prefix))
    path = make_pinned("a", ["a==1"], {}, settings.environments_dir)
    age(path / STAMP, 100)
    (unused,) = find_unused(settings, 60, NOW)

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        delete(unused)
    make_pinned("a", ["a==1"], {}, settings.environments_dir)
    assert made == [path, path]


def test_what_a_running_job_removes_meanwhile_is_no_error(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    leave(settings.nights_dir / OLD, 100)
    whole = Path.iterdir

    def vanishing(folder: Path) -> Iterator[Path]:
        names = list(whole(folder))
        (folder / "stdout.log").unlink(missing_ok=True)
        return iter(names)

    monkeypatch.setattr(Path, "iterdir", vanishing)
    (unused,) = find_unused(settings, 0, NOW + timedelta(days=200))
    assert unused.size_bytes < 100_000


def test_a_file_that_another_folder_shares_gives_no_room_back(settings: Settings, tmp_path: Path) -> None:
    old = leave(settings.environments_dir / "0123", 100, size=5_000_000)
    os.link(old / "jobs" / "stdout.log", tmp_path / "cached")
    (unused,) = find_unused(settings, 60, NOW)
    assert unused.size_bytes < 100_000


def test_a_link_is_neither_followed_nor_deleted(settings: Settings, tmp_path: Path) -> None:
    precious = leave(tmp_path / "elsewhere", 500)
    settings.nights_dir.mkdir()
    (settings.nights_dir / "latest").symlink_to(precious)
    inside = leave(settings.nights_dir / OLD, 100)
    (inside / "link").symlink_to(precious)
    os.utime(inside / "link", (0, 0), follow_symlinks=False)
    age(inside, 100)
    (unused,) = find_unused(settings, 60, NOW)
    assert delete(unused)
    assert (precious / "jobs" / "stdout.log").is_file()


def test_the_command_says_what_goes_and_a_dry_run_deletes_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: str) -> str:
        done = call(main, "prune", *arguments)
        assert done.returncode == 0
        return done.stdout

    monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(settings.state_dir))
    old, store = leave(settings.nights_dir / OLD, 61.5, size=2_000_000), settings.state_dir / "store.sqlite"
    store.write_text("")
    age(store, 400)
    lines = run("--dry-run").splitlines()
    assert lines[0].startswith(f"nights/{OLD}: 2.0 MB, last used 61 days ago")
    assert lines[1].startswith("1 folder, 2.0 MB would be freed")
    assert run("--keep-days", "62", "--dry-run").startswith("0 folders")
    assert old.is_dir()
    assert "2.0 MB freed" in run()
    assert not old.exists()
    assert store.is_file()
    assert run().startswith("0 folders, 0.0 MB")


def test_a_night_joins_the_store_before_it_goes_and_one_that_cannot_stays(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(settings.state_dir))
    for name in ("2026-09-01T0300-1a2b", "2026-09-02T0300-1a2b"):
        make_night(settings.nights_dir / name, [(outcome(), record())], name)
    (settings.nights_dir / "2026-09-02T0300-1a2b" / "night.json").write_text("{}")
    for path in settings.nights_dir.rglob("*"):
        age(path, 90)
    done = call(main, "prune")
    assert [path.name for path in settings.nights_dir.iterdir()] == ["2026-09-02T0300-1a2b"]
    assert "2026-09-02T0300-1a2b is kept: " in done.stderr
    assert open_store(settings).night_ids() == ["2026-09-01T0300-1a2b"]
