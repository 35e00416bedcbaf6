"""The border at the end of a job: what stays in its output folder, and what is removed and named."""

import os
import re
import socket
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nightjar_ci.untrusted.border import clean_output

NOBODY = 65534


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out" / "deep").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    return tmp_path / "out"


def names(out: Path) -> set[str]:
    return {str(path.relative_to(out)) for path in out.rglob("*")}


def test_files_folders_and_links_inside_stay(out: Path) -> None:
    (out / "deep" / "step-2").write_text("x")
    (out / "latest").symlink_to(out / "deep" / "step-2")
    (out / "deep" / "up").symlink_to("..")
    (out / "soon").symlink_to("deep/step-3")
    before = names(out)
    assert clean_output(out) is None
    assert names(out) == before


def test_what_leads_out_or_is_no_file_is_removed_and_named(out: Path) -> None:
    for place, target in (("a", "../secret"), ("deep/b", "/etc"), ("c", "a"), ("d", "/proc/self/environ"), ("e", "..")):
        (out / place).symlink_to(target)
    os.mkfifo(out / "deep" / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(out / "socket"))
        removed = clean_output(out) or ""
    assert names(out) == {"deep", "c"}  # that led to a removed link and leads nowhere
    assert (out.parent / "secret").read_text() == "secret"
    assert removed.startswith("removed from its output folder: 'a' (a symbolic link out of it), ")
    assert removed.endswith(", 1 more")


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "\udcff"])
def test_a_name_is_shown_as_text(out: Path, name: str) -> None:
    (out / name).symlink_to("/etc")
    removed = clean_output(out) or ""
    assert removed.isascii()
    assert removed.isprintable()


@pytest.mark.parametrize(("files", "kept"), [(2, 2), (3, 3), (4, 3)])
def test_the_number_of_files_is_bounded(out: Path, files: int, kept: int) -> None:
    for number in range(files):
        (out / f"f{number}").touch()
    removed = clean_output(out, most_files=3)
    assert len(names(out) - {"deep"}) == kept
    assert (removed is None) == (files == kept)


@pytest.mark.parametrize(("size", "stays"), [(99, True), (100, True), (101, False)])
def test_the_size_that_a_reader_sees_is_bounded(out: Path, size: int, stays: bool) -> None:
    with (out / "sparse").open("wb") as file:
        file.truncate(size)
    clean_output(out, most_bytes=100)
    assert (out / "sparse").exists() == stays


def test_a_folder_that_is_a_link_becomes_an_empty_folder(out: Path) -> None:
    link = out.parent / "link"
    link.symlink_to(out)
    (out / "x").touch()
    assert "the folder itself" in (clean_output(link) or "")
    assert (link.is_symlink(), list(link.iterdir()), (out / "x").exists()) == (False, [], True)


@pytest.mark.root
@pytest.mark.parametrize("mode", [0o000, 0o555])
def test_a_folder_that_its_owner_may_not_write_keeps_no_link(mode: int) -> None:
    with TemporaryDirectory() as name:  # pytest's own are root's alone
        folder, out = Path(name), Path(name) / "out"
        (out / "closed" / "deep").mkdir(parents=True)
        os.chown(folder, NOBODY, NOBODY)
        for path in (out / "closed" / "deep", out / "closed", out):
            (path / "link").symlink_to("/etc/passwd")
            os.chown(path, NOBODY, NOBODY)
            path.chmod(mode)
        os.seteuid(NOBODY)
        try:
            removed = clean_output(out) or ""
        finally:
            os.seteuid(0)
        assert removed.count("a symbolic link out of it") == 3
        assert names(out) == {"closed", "closed/deep"}


@pytest.mark.parametrize(("links", "said"), [(5, "link"), (6, "1 more"), (7, "2 more")])
def test_five_of_what_is_removed_are_named(tmp_path: Path, links: int, said: str) -> None:
    for number in range(links):
        (tmp_path / f"link{number}").symlink_to("/etc/passwd")
    removed = clean_output(tmp_path) or ""
    assert (len(re.findall(r"link\d", removed)), said in removed, "more" in removed) == (5, True, links > 5)


@pytest.mark.parametrize("at", [0, 16 << 20, 1 << 36])
def test_a_file_with_a_known_secret_is_removed_and_named(out: Path, at: int) -> None:
    for name, start in (("log", at), ("edge", (16 << 20) - 4)):
        with (out / name).open("wb") as file:
            file.seek(start)
            file.write(b"a-secret-value")
    (out / "a-secret-value.txt").write_text("")
    (out / "other").write_text("a-secret")
    removed = clean_output(out, secrets=["a-secret-value", "another one"])
    assert names(out) == {"deep", "other"}
    assert "'log' (it held a secret of this machine)" in (removed or "")


def test_a_program_with_the_rights_of_its_owner_is_removed(out: Path) -> None:
    for name, mode in (("owner", 0o4755), ("group", 0o2755), ("plain", 0o755)):
        (out / name).touch()
        (out / name).chmod(mode)
    clean_output(out)
    assert names(out) == {"deep", "plain"}
