"""Repositories that somebody else made: their programs are not started, their links and names lead nowhere."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nightjar_ci.bisect.ladders.commits import make_commit_ladder
from nightjar_ci.bisect.ladders.several import make_history_ladder
from nightjar_ci.environments.git_tree import ask_git, list_files, read_git
from nightjar_ci.environments.sources import read_source
from nightjar_ci.environments.worktree import add_worktree
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.images.build import find_revision
from tests.hostile.world import SECRET, World, check_manners


def git(folder: Path, *arguments: str, given: bytes = b"") -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "protocol.file.allow=always")
    command = ["git", "-C", str(folder), *who, *arguments]
    return os.fsdecode(subprocess.run(command, input=given, capture_output=True, check=True).stdout).strip()


def make_repository(folder: Path, *subjects: bytes) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "--quiet")
    commits = []
    for number, subject in enumerate(subjects or (b"first", b"second")):
        (folder / "pyproject.toml").write_text(f'[project]\nname = "p"\nversion = "{number}"\n')
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--no-verify", "--file=-", given=subject)
        commits.append(git(folder, "rev-parse", "HEAD"))
    return commits


def set_program(*keys: str) -> Callable[[Path, str], None]:
    def change(folder: Path, program: str) -> None:
        for key in keys:
            git(folder, "config", key, program)

    return change


def add_hooks(folder: Path, program: str) -> None:
    hooks = folder / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-checkout", "reference-transaction", "post-index-change", "fsmonitor-watchman"):
        (hooks / name).write_text(f"#!/bin/sh\n{program}\n")
        (hooks / name).chmod(0o755)


def add_hooks_elsewhere(folder: Path, program: str) -> None:
    add_hooks(folder, program)
    (folder / ".git" / "hooks").rename(folder / "tools")
    git(folder, "config", "core.hooksPath", str(folder / "tools"))


def add_signatures(folder: Path, program: str) -> None:
    plain = git(folder, "cat-file", "commit", "HEAD")
    signed = plain.replace("\n\n", "\ngpgsig -----BEGIN PGP SIGNATURE-----\n x\n -----END PGP SIGNATURE-----\n\n", 1)
    sha = git(folder, "hash-object", "-w", "-t", "commit", "--stdin", given=f"{signed}\n".encode())
    git(folder, "update-ref", "HEAD", sha)
    git(folder, "config", "log.showSignature", "true")
    set_program("gpg.program", "gpg.openpgp.program")(folder, program)


PROGRAMS: dict[str, Callable[[Path, str], None]] = {
    "a monitor of files": set_program("core.fsmonitor"),
    "hooks": add_hooks,
    "hooks elsewhere": add_hooks_elsewhere,
    "a pager and an editor": set_program("core.pager", "core.editor", "pager.log", "pager.show", "sequence.editor"),
    "a program that shows differences": set_program("diff.external", "diff.x.textconv", "diff.x.command"),
    "a program that checks signatures": add_signatures,
    "aliases": set_program("alias.status", "alias.log", "alias.rev-parse", "alias.worktree"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_a_repository_is_not_started(name: str, tmp_path: Path) -> None:
    folder, started = tmp_path / "repository", tmp_path / "started"
    first, _ = make_repository(folder)
    script = tmp_path / "program"
    script.write_text(f"#!/bin/sh\ntouch {started}\n")
    script.chmod(0o755)
    PROGRAMS[name](folder, str(script))
    second = git(folder, "rev-parse", "HEAD")
    (folder / "pyproject.toml").touch()  # git has to look at it again
    look_at(folder, first, second, tmp_path / "tree")
    assert not started.exists()


def look_at(folder: Path, first: str, second: str, tree: Path) -> None:
    assert read_git(folder) is not None
    assert ask_git(folder, "describe", "--always") is not None
    assert list_files(folder) is not None
    assert find_revision(folder) == second
    read_source(folder)
    add_worktree(folder, first, tree)
    add_worktree(folder, first, tree)
    assert [rung.source for rung in make_commit_ladder(folder, first, second).rungs] == [first, second]
    assert len(make_history_ladder({"": folder}, [], {"": second}).rungs) == 2


def test_a_repository_hidden_in_a_commit_is_not_the_repository(tmp_path: Path) -> None:
    folder, started = tmp_path / "repository", tmp_path / "started"
    make_repository(folder)
    inner = folder / "package"
    git(folder, "init", "--quiet", "--bare", str(inner))
    (inner / "config").write_text(
        f'[core]\nrepositoryformatversion = 0\nbare = false\nworktree = {inner}\nfsmonitor = "touch {started}; false"\n'
    )
    (inner / "setup.py").write_text("")
    git(folder, "add", "--all", "--force")
    git(folder, "commit", "--quiet", "--message=hidden")
    assert read_git(inner) is None
    assert list_files(inner) is None
    read_source(inner)
    assert not started.exists()


SUBJECTS = {
    "a line separator": "a\u2028b".encode(),
    "a next line": "a\u0085b".encode(),
    "a form feed": b"a\x0cb\x0bc\x1cd",
    "another encoding": b"caf\xe9",
    "carriage returns": b"a\rb\r",
    "an escape": b"\x1b[2Ja",
    "markup": b"<script>alert(1)</script>",
    "a workflow command": b"::add-mask::a",
    "nothing": b" \x01",
}


@pytest.mark.parametrize("name", SUBJECTS)
def test_a_subject_is_one_rung(name: str, tmp_path: Path) -> None:
    commits = make_repository(tmp_path, b"first", SUBJECTS[name], b"last")
    ladder = make_commit_ladder(tmp_path, commits[0], commits[-1])
    assert [rung.source for rung in ladder.rungs] == commits
    assert [rung.source for rung in make_history_ladder({"": tmp_path}, [], {"": commits[-1]}).rungs] == commits


@pytest.mark.parametrize("url", ["ext::sh -c touch% STARTED", "-u./x", "ssh://-oProxyCommand=touch STARTED/x"])
def test_the_address_of_a_submodule_starts_nothing(url: str, tmp_path: Path) -> None:
    folder, started = tmp_path / "repository", tmp_path / "started"
    (commit, *_) = make_repository(folder, b"first")
    url = url.replace("STARTED", str(started))
    (folder / ".gitmodules").write_text(f'[submodule "x"]\n\tpath = x\n\turl = "{url}"\n\tupdate = !touch {started}\n')
    git(folder, "update-index", "--add", "--cacheinfo", f"160000,{commit},x")
    git(folder, "add", ".gitmodules")
    git(folder, "commit", "--quiet", "--message=submodule")
    with pytest.raises(EnvironmentFailedError, match="git submodule"):
        add_worktree(folder, git(folder, "rev-parse", "HEAD"), tmp_path / "tree")
    assert not started.exists()


def test_a_submodule_is_not_a_folder_of_this_machine(tmp_path: Path) -> None:
    make_repository(tmp_path / "private", b"private")
    folder = tmp_path / "repository"
    make_repository(folder)
    git(folder, "submodule", "--quiet", "add", str(tmp_path / "private"), "x")
    git(folder, "commit", "--quiet", "--message=submodule")
    with pytest.raises(EnvironmentFailedError, match="transport 'file' not allowed"):
        add_worktree(folder, git(folder, "rev-parse", "HEAD"), tmp_path / "tree")


def test_links_of_a_commit_lead_nothing_out(tmp_path: Path) -> None:
    """A matrix's own files are links to a file of the machine: its text is in no message and no output."""
    world = World(tmp_path)
    world.make()
    make_repository(world.work)
    for name in ("matrix.toml", "policies.toml", "requirements.txt", "night/night.json", "night/verdicts.json"):
        (world.work / name).parent.mkdir(exist_ok=True)
        (world.work / name).symlink_to(world.host_file)
    done = world.run_each(
        ["run", "matrix.toml"],
        ["gate", "night", "--policies", "policies.toml"],
        ["site", "--out", "site", "--nights", "."],
        ["store", "--import", "night"],
    )
    for end in done:
        check_manners(end)
    assert [end.code for end in done if end.code == 0 and SECRET in end.stdout] == []
    assert world.find_leaks(done) == []


@pytest.mark.parametrize("place", [".", "sub", "sub/inner"])
@pytest.mark.parametrize("how", ["clean", "process", "include", "named="])
def test_a_status_starts_no_filter_that_a_job_left(place: str, how: str, tmp_path: Path) -> None:
    make_repository(tmp_path / "top")
    planted = tmp_path / "top" / place
    if place != ".":
        make_repository(planted)
    ran = tmp_path / "ran"
    name = "a=b" if how == "named=" else "evil"
    key = f"filter.{name}.{'process' if how == 'process' else 'clean'}"
    program = f"touch {ran}; cat"
    if how == "include":
        (planted / "more").write_text(f'[filter "evil"]\n\tclean = "{program}"\n')
        git(planted, "config", "include.path", str(planted / "more"))
    else:
        git(planted, "config", key, program)
    (planted / ".gitattributes").write_text(f"* filter={name}\n")
    os.utime(planted / "pyproject.toml", (1, 1))  # of the same size: git reads it to compare
    subprocess.run(["git", "-C", str(planted), "status"], capture_output=True, check=False)
    assert ran.exists()  # else the attempt would show nothing
    ran.unlink()
    for folder in (tmp_path / "top", planted):
        status = read_git(folder)
        assert status is None or status.dirty
        find_revision(folder)
    assert not ran.exists()


def test_a_status_keeps_the_filters_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_repository(tmp_path / "r")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".gitconfig").write_text(f'[filter "lfs"]\n\tclean = "touch {tmp_path}/ran; cat"\n')
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "r" / ".gitattributes").write_text("* filter=lfs\n")
    os.utime(tmp_path / "r" / "pyproject.toml", (1, 1))
    assert read_git(tmp_path / "r") is not None
    assert (tmp_path / "ran").exists()
