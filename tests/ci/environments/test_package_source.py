"""Sources of packages: archives of an index, some of which nobody should unpack, and tags of repositories."""

import gzip
import hashlib
import io
import random
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nightjar_ci.environments.package_source import make_checkout, make_source, parse_address, parse_source
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.settings import Settings, read_settings
from tests.ci.jobs import HERE
from tests.ci.local_project import git
from tests.ci.servers import Answer, serve


def archive(*members: tuple[str, bytes], link: tuple[str, str] | None = None) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, contents in members:
            info = tarfile.TarInfo(name)
            info.size = len(contents)
            tar.addfile(info, io.BytesIO(contents))
        if link is not None:
            info = tarfile.TarInfo(link[0])
            info.type, info.linkname = tarfile.SYMTYPE, link[1]
            tar.addfile(info)
    return file.getvalue()


GOOD = archive(("lib-1.0/tests/test_a.py", b"def test_a(): pass\n"), ("lib-1.0/PKG-INFO", b"Name: lib\n"))


def index(data: bytes, digest: str | None = None) -> Callable[[str, str, str | None], Answer]:
    """An index with one package, `lib`, of one version."""
    digest = digest or hashlib.sha256(data).hexdigest()

    def answer(method: str, path: str, authorization: str | None) -> Answer:
        if path.endswith(".tar.gz"):
            return 200, {"Content-Type": "application/gzip"}, data
        if path == "/simple/lib/":
            links = (
                f'<a href="../../files/lib-1.0.tar.gz#sha256={digest}">a</a><a href="lib-2.0-py3-none-any.whl">b</a>'
            )
            return 200, {"Content-Type": "text/html"}, links.encode()
        return 404, {}, b""

    return answer


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    folders = {"NIGHTJAR_CACHE_DIR": str(tmp_path / "cache"), "DOCKER_CONFIG": str(tmp_path)}
    return read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path), **folders})


def test_the_archive_is_fetched_once_and_unpacked(settings: Settings) -> None:
    with serve(index(GOOD)) as served:
        settings = replace(settings, index_url=f"{served.url}/simple")
        folder = make_source("lib==1.0", HERE, settings)
        assert make_source("lib==1.0", HERE, settings) == folder
    assert folder.name == "lib-1.0"
    assert (folder / "tests" / "test_a.py").read_text() == "def test_a(): pass\n"
    assert [path for _, path in served.asked] == ["/simple/lib/", "/files/lib-1.0.tar.gz"]
    assert [path.name for path in folder.parent.iterdir()] == ["lib-1.0"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lib==2.0", "the package index has no source distribution of lib 2.0"),
        ("other==1.0", "'other' is not in the package index"),
        ("lib", "lib is not installed in current"),
    ],
)
def test_what_is_not_there_is_said(settings: Settings, text: str, message: str) -> None:
    with serve(index(GOOD)) as served, pytest.raises(EnvironmentFailedError, match=message):
        make_source(text, HERE, replace(settings, index_url=f"{served.url}/simple"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (archive(("lib-1.0/a", b""), ("../outside", b"x")), "cannot be unpacked"),
        (archive(("lib-1.0/a", b""), link=("lib-1.0/b", "/etc/passwd")), "cannot be unpacked"),
        (archive(("one/a", b""), ("two/b", b"")), "holds 2 folders, expected one"),
        (gzip.compress(b"no tar", mtime=0), "cannot be unpacked"),
        (b"", "cannot be unpacked"),
        (archive(("lib-1.0/a", bytes(300_000))), "it holds more than"),
        (archive(("lib-1.0/a", random.Random(0).randbytes(100_000)))[:50_000], "cannot be unpacked"),
    ],
    ids=["outside", "link", "two-folders", "no-tar", "empty", "bomb", "cut"],
)
# without: Python before 3.11.4; 3.12 warns of it, and 3.14 cannot extract
@pytest.mark.parametrize("filtered", [True, False] if sys.version_info < (3, 14) else [True])
@pytest.mark.filterwarnings("ignore:Python 3.14 will:DeprecationWarning")
def test_a_damaged_or_escaping_archive_is_refused(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, message: str, filtered: bool
) -> None:
    monkeypatch.setattr("nightjar_ci.environments.package_source.MOST_BYTES", 200_000)
    if not filtered:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    with serve(index(data)) as served, pytest.raises(EnvironmentFailedError, match=message):
        make_source("lib==1.0", HERE, replace(settings, index_url=f"{served.url}/simple"))
    assert list((tmp_path / "cache" / "sources").iterdir()) == []


def test_an_archive_with_another_digest_is_refused(settings: Settings) -> None:
    with serve(index(GOOD, digest="0" * 64)) as served, pytest.raises(EnvironmentFailedError, match="has the digest"):
        make_source("lib==1.0", HERE, replace(settings, index_url=f"{served.url}/simple"))


@pytest.mark.parametrize(
    "text",
    ["lib>=1", "lib @ https://example.com/lib.tar.gz", "lib[extra]", "-e .", "lib==1.*", "lib==1; os_name == 'nt'"],
)
def test_a_source_is_one_package_and_at_most_one_version(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected (NAME, NAME==VERSION or|git)"):
        parse_source(text)


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """A repository with the tags jax-v1.0 and v2.0, and a later commit on main."""
    folder = tmp_path / "upstream"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for text, tag in (("one", "jax-v1.0"), ("two", "v2.0"), ("three", None)):
        (folder / "test_a.py").write_text(text)
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "-m", text)
        if tag is not None:
            git(folder, "tag", "--annotate", "-m", tag, tag)
    return folder


@pytest.mark.parametrize(("version", "contents"), [("1.0", "one"), ("2.0", "two")])
def test_the_tag_of_a_release_has_no_history(upstream: Path, tmp_path: Path, version: str, contents: str) -> None:
    folder = make_checkout("jax", version, f"git+file://{upstream}", tmp_path / "cache")
    assert (folder / "test_a.py").read_text() == contents
    assert git(folder, "rev-list", "--count", "HEAD") == "1"
    upstream.rename(tmp_path / "gone")  # what is kept needs no network
    assert make_checkout("jax", version, f"git+file://{upstream}", tmp_path / "cache") == folder
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_revision_may_be_a_branch_a_tag_or_a_commit(upstream: Path, tmp_path: Path) -> None:
    commit = git(upstream, "rev-parse", "v2.0^{commit}")
    for revision, contents in (("main", "three"), ("jax-v1.0", "one"), (commit, "two")):
        folder = make_checkout("jax", None, f"git+file://{upstream}@{revision}", tmp_path / "cache")
        assert (folder / "test_a.py").read_text() == contents
    with pytest.raises(EnvironmentFailedError, match="has none of never"):
        make_checkout("jax", None, f"git+file://{upstream}@never", tmp_path / "cache")


def test_a_version_without_a_tag_says_which_tags_were_tried(upstream: Path, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailedError, match=r"has none of v9\.9, jax-v9\.9, 9\.9, jax-9\.9, release-9\.9"):
        make_checkout("jax", "9.9", f"git+file://{upstream}", tmp_path / "cache")
    assert not any((tmp_path / "cache").glob("*"))


def test_a_repository_that_is_not_reached_is_an_error_of_the_machine(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailedError, match=r"`git ls-remote .*` ended with 128"):
        make_checkout("jax", "1.0", f"git+file://{tmp_path}/nowhere", tmp_path / "cache")


def test_the_version_is_that_of_the_environment_unless_a_revision_is_named(upstream: Path, settings: Settings) -> None:
    folder = make_source(f"absent @ git+file://{upstream}@main", HERE, settings)
    assert (folder / "test_a.py").read_text() == "three"
    with pytest.raises(EnvironmentFailedError, match="absent is not installed"):
        make_source(f"absent @ git+file://{upstream}", HERE, settings)


@pytest.mark.parametrize(
    "url", ["https://host/a.tar.gz", "git+ext::sh", "git+https://host/a@--upload-pack=sh", "git+/local/path"]
)
def test_other_addresses_are_not_sources(url: str) -> None:
    with pytest.raises(ValueError, match="is not a repository"):
        parse_address(url)
    with pytest.raises(ValueError, match="is not a"):
        parse_source(f"jax @ {url}")
