"""Repositories as sources of tests: the tag of the installed version, other revisions, and what git cannot give."""

import subprocess
from pathlib import Path

import pytest

from nightjar_ci.environments.source_checkout import make_checkout, parse_address
from nightjar_ci.environments.source_distribution import make_source, parse_source
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.settings import Settings
from tests.ci.environments.test_source_distribution import settings as settings
from tests.ci.jobs import HERE


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


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
