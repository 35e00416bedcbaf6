"""`images bump` against an index of wheels made by hand: changes and conflicts."""

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nightjar_ci.errors import InputError
from nightjar_ci.images.lock.bump import Bump, bump_locks, compare_locks, find_changelog, write_bump
from nightjar_ci.images.lock.commits import find_commits
from nightjar_ci.images.lock.debian_day import PINS, find_archive, move_day
from nightjar_ci.images.tree import find_checkout
from nightjar_ci.tools import ToolError
from nightjar_ci.web.http import HttpError
from tests.ci.images.test_command import images
from tests.ci.jax_nightly.wheels import write_wheel
from tests.ci.servers import Answer, serve
from tests.machine import asks

LOCKS = ("dev", "tools", "base", "docs", "devel", "jax", "te-source", "aot")
PYPROJECT = '[project]\nname = "{}"\nversion = "0"\nrequires-python = ">=3.11"\ndependencies = ["{}"]\n'
FILES = {
    "ci/pyproject.toml": PYPROJECT.format("nightjar-ci", "other")
    + "[project.optional-dependencies]\npostgres = []\nquery = []\n",
    "models/pyproject.toml": PYPROJECT.format("nightjar-models", "jax"),
    "profiling/pyproject.toml": PYPROJECT.format("nightjar-profiling", "other"),
    **{f"docker/locks/{name}.in": "other\n" for name in LOCKS},
    "docker/locks/jax-cpu.in": "jax\nflax\n",
    "docker/versions.json": '{"variable": {"DEBIAN_DAY": {"default": "20200101T000000Z"}}}',
    **{f"docker/locks/{name}": "" for name in ("te-cuda12.txt", "jax-cuda12.txt", "aot.overrides.in")},
}


def make_wheel(folder: Path, name: str, version: str, *requires: str) -> None:
    write_wheel(folder, name, version, "py3-none-any", "".join(f"Requires-Dist: {one}\n" for one in requires), {})


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout locked to jax 1.0; an index that has jax 1.1, a pre-release, and a flax that wants jax below 1.1."""
    wheels = tmp_path / "wheels"
    for version in ("1.0", "1.1", "1.2rc1"):
        make_wheel(wheels, "jax", version)
    make_wheel(wheels, "flax", "1.0", "jax")
    make_wheel(wheels, "flax", "2.0", "jax<1.1")
    make_wheel(wheels, "other", "1.0")
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", ",".join(map(str, wheels.iterdir())))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "checkout"
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    write_bump(root, bump_locks(root, ["jax==1.0", "flax==1.0"], on_step=lambda step: None))
    return root


def versions(checkout: Path, pins: list[str]) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    bump = bump_locks(checkout, pins, on_step=lambda step: None)
    return {change.package: (change.before, change.after) for change in bump.changes}


@pytest.mark.slow
def test_newest_releases_are_taken_and_nothing_is_written(checkout: Path) -> None:
    before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
    assert versions(checkout, []) == {"jax": (("1.0",), ("1.1",))}  # flax 2 would hold jax back
    assert {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()} == before


def test_a_pin_moves_what_it_names_and_the_bump_is_written(checkout: Path) -> None:
    bump = bump_locks(checkout, ["jax==1.1"], on_step=lambda step: None)
    assert {change.package for change in bump.changes} == {"jax"}
    assert bump.changes[0].changelog == "https://docs.jax.dev/en/latest/changelog.html"
    assert {"dev", "models", "jax-cpu"} <= set(bump.changes[0].locks)
    write_bump(checkout, bump)
    assert "jax==1.1 \\\n    --hash=sha256:" in (checkout / "docker/locks/jax-cpu.txt").read_text()
    assert str(checkout.parent) not in (checkout / "docker/locks/jax-cpu.txt").read_text()
    assert versions(checkout, ["jax==1.1"]) == {}


@pytest.mark.slow
def test_the_day_of_the_os_moves_with_everything_and_stays_where_one_pin_moves(checkout: Path) -> None:
    everything = bump_locks(checkout, [], on_step=lambda step: None).files
    assert "20200101" not in everything["docker/versions.json"]
    assert everything["docker/versions.json"].count("T000000Z") == 1
    assert "docker/versions.json" not in bump_locks(checkout, ["jax==1.1"], on_step=lambda _: None).files


def test_a_set_that_does_not_resolve_is_refused_with_the_package_that_blocks(checkout: Path) -> None:
    with pytest.raises(InputError, match="causes the conflict") as caught:
        versions(checkout, ["other==1.0", "jax==1.1", "flax==2.0"])
    assert "jax==1.1 or flax==2.0 causes the conflict" in str(caught.value)
    assert "other==1.0" not in str(caught.value).partition("Output of uv")[0]


@pytest.mark.parametrize(("pin", "message"), [("jax", "has no version"), ("jax=1", "is not a valid requirement")])
def test_an_invalid_pin_is_refused(checkout: Path, pin: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        versions(checkout, [pin])


def test_locks_are_compared_version_by_version() -> None:
    before = {"a/x.txt": "numpy==1.9 \\\nnumpy==1.10 \\\n", "a/y.txt": "gone==1\n"}
    after = {"a/x.txt": "numpy==1.10 \\\n", "a/y.txt": "new==1\n"}
    found = {change.package: (change.before, change.after, change.locks) for change in compare_locks(before, after)}
    assert found == {
        "numpy": (("1.9", "1.10"), ("1.10",), ("x",)),
        "gone": (("1",), (), ("y",)),
        "new": ((), ("1",), ("y",)),
    }
    assert find_changelog("rich") is None
    assert find_changelog("nvidia-cublas-cu12") == "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes"


class Upstream:
    """A bare repository of a package, and a clone that pushes to it."""

    def __init__(self, folder: Path, package: str) -> None:
        self.bare, self.package, self._clone = folder / f"{package}.git", package, folder / package
        self._git("init", "--quiet", "--bare", "--initial-branch=main", str(self.bare), cwd=folder)
        self._git("clone", "--quiet", str(self.bare), str(self._clone), cwd=folder)

    def commit(self, *requires: str) -> str:
        """A commit with a `pyproject.toml` in `python/`; returns its id."""
        (self._clone / "python").mkdir(exist_ok=True)
        project = f'[project]\nname = "{self.package}"\nversion = "9.0.dev0"\nrequires-python = ">=3.12"\n'
        text = f"{project}dependencies = {json.dumps(requires)}\n"
        (self._clone / "python/pyproject.toml").write_text(text)
        self._git("add", "--all", cwd=self._clone)
        author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        self._git(*author, "commit", "--quiet", "--allow-empty", "--message=x", cwd=self._clone)
        self._git("push", "--quiet", "origin", "HEAD:main", cwd=self._clone)
        return self._git("rev-parse", "HEAD", cwd=self._clone).strip()

    def _git(self, *arguments: str, cwd: Path) -> str:
        return subprocess.run(["git", *arguments], cwd=cwd, check=True, capture_output=True, text=True).stdout


@pytest.fixture
@asks("git")
def flax(checkout: Path, tmp_path: Path) -> Upstream:
    upstream = Upstream(tmp_path, "flax")
    name_repository(checkout, f"file://{upstream.bare}")
    (checkout / "docker/versions.json").write_text('{"variable": {"DEFAULT_PYTHON": {"default": "3.13"}}}')
    return upstream


def name_repository(checkout: Path, url: str, more: str = "") -> None:
    entry = f'[[repository]]\npackage = "flax"\nurl = "{url}"\nsubdirectory = "python"\n{more}'
    (checkout / "docker/repositories.toml").write_text(entry)


def bump_commits(checkout: Path, pins: list[str] | None = None, packages: tuple[str, ...] = ()) -> Bump:
    commits = find_commits(checkout, packages)
    return bump_locks(checkout, pins or [], on_step=lambda step: None, commits=commits, upgrade=False)


@pytest.mark.slow
def test_the_newest_commit_is_locked_for_the_python_of_the_images(checkout: Path, flax: Upstream) -> None:
    flax.commit("jax")
    commit = flax.commit("jax<2")
    bump = bump_commits(checkout)
    assert {change.package: (change.before, change.after) for change in bump.changes} == {
        "flax": (("1.0",), ("1.0", f"commit {commit[:12]}"))
    }
    assert bump.changes[0].changelog == f"file://{flax.bare.with_suffix('')}/commits/{commit}"
    write_bump(checkout, bump)
    lock = (checkout / "docker/locks/jax-cpu.txt").read_text()
    inside = f"file://{flax.bare}@{commit}#subdirectory=python"
    assert f"flax @ git+{inside} ; python_full_version >= '3.13'\n" in lock
    assert "flax==1.0 ; python_full_version < '3.13' \\\n    --hash=sha256:" in lock
    assert bump_commits(checkout, packages=("flax",)).changes == ()
    newer = flax.commit()
    assert bump_commits(checkout).changes[0].after == ("1.0", f"commit {newer[:12]}")


def test_a_commit_that_does_not_resolve_stands_in_the_way(checkout: Path, flax: Upstream) -> None:
    commit = flax.commit("jax<1.1")
    before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="does not resolve") as caught:
        bump_commits(checkout, ["other==1.0", "jax==1.1"])
    assert f"jax==1.1 or flax at commit {commit[:12]} causes the conflict" in str(caught.value)
    assert {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()} == before


def test_a_repository_that_is_not_reached_is_a_failed_tool_with_a_hint(checkout: Path, flax: Upstream) -> None:
    name_repository(checkout, "http://127.0.0.1:9/flax")
    with pytest.raises(ToolError, match=r"flax: .*127\.0\.0\.1:9") as caught:
        find_commits(checkout)
    assert caught.value.exit_code == 3
    assert "check the network" in str(caught.value)


def test_a_branch_or_package_without_a_repository_is_refused(checkout: Path, flax: Upstream) -> None:
    flax.commit()
    with pytest.raises(InputError, match=r"'jax' has no repository .* expected one of flax"):
        find_commits(checkout, ["jax"])
    name_repository(checkout, f"file://{flax.bare}", 'branch = "maim"\n')
    with pytest.raises(InputError, match="has no refs/heads/maim"):
        find_commits(checkout)
    name_repository(checkout, f"file://{flax.bare}", 'brnch = "main"\n')
    with pytest.raises(InputError, match="did you mean 'branch'"):
        find_commits(checkout)


CHECKOUT = find_checkout(Path(__file__).parent)
DAY = json.loads((CHECKOUT / PINS).read_text())["variable"]["DEBIAN_DAY"]["default"]
PAGE = f"/archive/debian/{DAY}/dists/trixie/Release"


def archive(method: str, path: str, authorization: str | None) -> Answer:
    """Of one day; and a portal that answers everything with a page."""
    if path.startswith("/portal"):
        return 200, {}, b"<html>Log in</html>"
    return (200, {}, b"Origin: Debian\nCodename: trixie\n") if path == PAGE else (404, {}, b"")


def test_an_archive_that_has_the_pinned_day_is_printed_and_one_that_lacks_it_is_said(tmp_path: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    with serve(archive) as served:
        found = images("snapshot", f"{served.url}/archive/", environ=environ)
        other = images("snapshot", f"{served.url}/archive", environ={**environ, "DEBIAN_DAY": "20200101T000000Z"})
    assert (found.returncode, found.stdout) == (0, f"{served.url}/archive\n")
    assert (other.returncode, other.stdout) == (1, "")
    assert "images get the current OS packages" in other.stderr
    assert "20200101T000000Z/dists/trixie/Release answered 404" in other.stderr


def test_what_does_not_answer_or_is_no_archive_is_never_used() -> None:
    with serve(archive) as served, pytest.raises(InputError, match="is not a Debian Release file"):
        find_archive(CHECKOUT, f"{served.url}/portal")
    with pytest.raises(HttpError, match="cannot reach"):
        find_archive(CHECKOUT, served.url)


def test_the_day_moves_and_nothing_else_of_the_file() -> None:
    text = (CHECKOUT / PINS).read_text()
    assert move_day(text, datetime(2026, 11, 22, 9, tzinfo=UTC)) == text.replace(DAY, "20261122T000000Z")
