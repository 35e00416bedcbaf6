"""What a job leaves where a file is expected: links, FIFOs, sockets, devices and files without end."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from nightjar_ci.cli import main
from nightjar_ci.formats.night_folder import Night, job_folder, read_result
from nightjar_ci.formats.profile import find_machine, read_flamegraph, read_profile
from nightjar_ci.gate.gate import read_outcome
from nightjar_ci.night.matrix import read_matrix
from nightjar_ci.night.run import run_night
from nightjar_ci.untrusted.files import append_untrusted, create_untrusted, open_untrusted, read_log, read_untrusted
from nightjar_ci.untrusted.git import git_command, git_environment, repository_command
from tests.called import call
from tests.ci.jobs import GOOD, RESULT, python, write_matrix
from tests.ci.nights import leave_capture

SECRET = "the-text-of-a-host-file"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A folder outside of every job, with a file that no job may show."""
    folder = tmp_path / "host"
    folder.mkdir()
    (folder / "secret").write_text(SECRET)
    return folder


def leave_socket(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


@pytest.mark.parametrize(
    ("leave", "kind"),
    [
        (lambda path: path.symlink_to("/dev/zero"), "a symbolic link"),
        (lambda path: path.symlink_to(__file__), "a symbolic link"),
        (lambda path: path.symlink_to(path), "a symbolic link"),
        (os.mkfifo, "a FIFO"),
        (leave_socket, "a socket"),
        (lambda path: path.mkdir(), "a folder"),
    ],
    ids=["zero", "link", "loop", "fifo", "socket", "folder"],
)
def test_only_a_regular_file_is_opened(tmp_path: Path, leave: Callable[[Path], None], kind: str) -> None:
    leave(tmp_path / "file")
    with pytest.raises(OSError, match=f"is {kind}, expected a regular file"):
        open_untrusted(tmp_path, "file")


def test_a_device_is_not_opened() -> None:
    with pytest.raises(OSError, match="is a device, expected a regular file"):
        open_untrusted(Path("/dev"), "zero")


@pytest.mark.parametrize("name", ["out/secret", "deep/out/secret"])
def test_no_component_below_the_folder_of_a_job_may_be_a_link(tmp_path: Path, host: Path, name: str) -> None:
    job = tmp_path / "job"
    (job / "deep").mkdir(parents=True)
    for folder in (job, job / "deep"):
        (folder / "out").symlink_to(host)
    with pytest.raises(OSError, match="out is a symbolic link, or not a folder"):
        open_untrusted(job, name)


def test_a_job_that_put_a_link_in_place_of_its_folder_is_not_read(tmp_path: Path, host: Path) -> None:
    (tmp_path / "job").symlink_to(host)
    with pytest.raises(OSError, match="is a symbolic link"):
        open_untrusted(tmp_path / "job", "secret")


@pytest.mark.parametrize("name", ["../host/secret", "/etc/hostname", "a/../../host/secret", "", "a\0b"])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path: Path, host: Path, name: str) -> None:
    (tmp_path / "job" / "a").mkdir(parents=True)
    with pytest.raises(OSError, match="is not a name below the job's folder"):
        open_untrusted(tmp_path / "job", name)


def test_a_file_in_a_folder_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x" * 3_000_000)
    assert read_untrusted(tmp_path, "a/b/file") == b"x" * 3_000_000
    with pytest.raises(FileNotFoundError):
        read_untrusted(tmp_path, "a/c/file")


def test_a_file_with_more_bytes_than_allowed_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(10**12)  # it takes no room on the disk
    with pytest.raises(OSError, match="has 1,000,000,000,000 bytes or more, expected at most"):
        read_untrusted(tmp_path, "file")
    assert read_result(tmp_path) is None


def test_reading_has_a_deadline(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="was not read within 0 s"):
        read_untrusted(tmp_path, "file", deadline_s=0)


def test_of_a_log_that_nobody_shortened_both_ends_are_read(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        file.write(b"first\n")
        file.truncate(10**10)
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast\n")
    text = read_log(tmp_path, "log")
    assert (text[:6], text[-6:]) == ("first\n", "\nlast\n")
    assert len(text) < 17 * 2**20
    assert read_log(tmp_path, "absent") == ""


def test_what_we_write_into_the_folder_of_a_job_goes_through_no_link(tmp_path: Path, host: Path) -> None:
    for name in ("old", "log"):
        (tmp_path / name).symlink_to(host / "secret")
    with create_untrusted(tmp_path, "old") as file:
        file.write(b"ours")
    assert (tmp_path / "old").read_bytes() == b"ours"
    with pytest.raises(OSError, match="symbolic link"):
        append_untrusted(tmp_path, "log", "ours")
    assert (host / "secret").read_text() == SECRET


def test_no_reader_follows_a_link_that_a_job_left(tmp_path: Path, host: Path) -> None:
    leave_capture(tmp_path, "profile")
    job = job_folder(tmp_path, "profile")
    capture = job / "capture"
    (host / "result.json").write_text(RESULT)
    (host / "flamegraph.json").write_text((capture / "flamegraph.json").read_text())
    profile = read_profile(capture)
    assert read_flamegraph(capture, profile) is not None
    (capture / "flamegraph.json").unlink()
    (capture / "flamegraph.json").symlink_to(host / "flamegraph.json")
    assert read_flamegraph(capture, profile) is None
    for name in ("result.json", "outcome.json"):
        (job / name).symlink_to(host / "result.json")
    (job / "elsewhere").symlink_to(host)
    assert read_result(job) is None
    assert read_outcome(job) is None
    assert find_machine(job) is None


def shell(text: str) -> tuple[str, ...]:
    return ("sh", "-c", text)


def run(tmp_path: Path, commands: dict[str, tuple[str, ...]], **defaults: object) -> tuple[Night, Path]:
    matrix = read_matrix(write_matrix(tmp_path / "m.toml", commands, **defaults))
    return run_night(matrix, tmp_path / "night"), tmp_path / "night"


def test_a_link_in_place_of_a_log_or_a_result_shows_nothing_of_the_host(tmp_path: Path, host: Path) -> None:
    link = f"ln -sf {host / 'secret'} {{out}}"
    commands = {
        "log": shell(f"{link}/stderr.log; exit 3"),
        "result": shell(f"{link}/result.json"),
        "folder": shell(f"ln -s {host} {{out}}/capture; exit 4"),
        "good": python(GOOD),
    }
    night, folder = run(tmp_path, commands)
    assert [(one.job, one.state) for one in night.jobs] == [
        ("log", "failed"),
        ("result", "invalid"),
        ("folder", "failed"),
        ("good", "completed"),
    ]
    assert "cannot read stderr.log: is a symbolic link" in (night.jobs[0].message or "")
    assert "removed from its output folder: 'result.json' (a symbolic link out of it)" in (night.jobs[1].message or "")
    state = {**os.environ, "NIGHTJAR_STATE_DIR": str(tmp_path / "state")}
    for command in (["report", str(folder)], ["site", "--nights", str(tmp_path), "--out", str(tmp_path / "site")]):
        call(main, *command, environ=state).check_returncode()
    written = [path for place in (folder, tmp_path / "site") for path in place.rglob("*") if not path.is_symlink()]
    shown = [path for path in written if path.is_file() and SECRET in path.read_text(errors="replace")]
    assert [path.name for path in written if path.name == "report.html"]
    assert shown == []


def test_a_fifo_or_a_device_in_place_of_a_result_ends_as_invalid(tmp_path: Path) -> None:
    commands = {
        "fifo": ("mkfifo", "{out}/result.json"),
        "zero": shell("ln -s /dev/zero {out}/result.json"),
        "log": shell("rm {out}/stderr.log; mkfifo {out}/stderr.log; exit 5"),
    }
    night, _ = run(tmp_path, commands, timeout_s=3)
    assert {one.job: one.state for one in night.jobs} == {"fifo": "invalid", "zero": "invalid", "log": "failed"}
    assert "removed from its output folder: 'result.json' (a FIFO)" in (night.jobs[0].message or "")


def test_a_capture_page_that_is_a_link_is_not_published(tmp_path: Path, host: Path) -> None:
    night, folder = run(tmp_path, {"a": python(GOOD)})
    capture = job_folder(folder, "a") / "capture"
    capture.mkdir()
    (capture / "report.html").symlink_to(host / "secret")
    (folder / "report.html").write_text("the night")
    environ = {**os.environ, "NIGHTJAR_STATE_DIR": str(tmp_path / "state")}
    done = call(main, "site", "--nights", tmp_path, "--out", tmp_path / "site", environ=environ)
    assert done.returncode == 0
    assert "report.html is not published: is a symbolic link" in done.stderr
    published = tmp_path / "site" / "nights" / night.id
    assert [path.relative_to(published).as_posix() for path in published.rglob("*.html")] == ["report.html"]


@pytest.mark.parametrize(
    "changes", [{"id": "../../../x"}, {"id": ""}, {"planned": ["../x"]}, {"id": "a/b"}, {"id": "x" * 200}]
)
def test_an_id_that_is_no_file_name_is_refused_by_readers(tmp_path: Path, changes: dict[str, object]) -> None:
    (tmp_path / "one").mkdir()
    _, folder = run(tmp_path / "one", {"a": python(GOOD)})
    document = json.loads((folder / "night.json").read_text())
    (folder / "night.json").write_text(json.dumps(document | changes))
    (folder / "report.html").write_text("x")
    out = tmp_path / "deep" / "er" / "site"
    environ = {**os.environ, "NIGHTJAR_STATE_DIR": str(tmp_path / "state")}
    done = call(main, "site", "--nights", tmp_path / "one", "--out", out, environ=environ)
    assert done.returncode == 0  # the other nights have their page
    assert f"{folder / 'night.json'}: {next(iter(changes))}" in done.stderr
    assert [path for path in (tmp_path / "deep").rglob("*") if path.is_file() and not path.is_relative_to(out)] == []
    assert list(out.rglob("report.html")) == []


def test_a_repository_without_a_work_tree_is_named(tmp_path: Path) -> None:
    assert repository_command(tmp_path, "log")[-3:] == ["--git-dir", str(tmp_path), "log"]
    (tmp_path / ".git").mkdir()
    assert repository_command(tmp_path, "log") == git_command(tmp_path, "log")


def test_the_repository_of_a_hook_is_not_ours() -> None:
    assert git_environment({"GIT_DIR": "x", "GIT_SSH_COMMAND": "y", "PATH": "z"}) == {
        "GIT_SSH_COMMAND": "y",
        "PATH": "z",
    }
