"""`images bump` against an index of wheels made by hand: what changes, and what stands in the way."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

import pytest

from nightjar_ci.errors import InputError
from nightjar_ci.images.bump import bump_locks, compare_locks, find_changelog, write_bump

Versions = tuple[str, ...]

PYPROJECT = '[project]\nname = "{}"\nversion = "0"\nrequires-python = ">=3.11"\ndependencies = ["{}"]\n'
FILES = {
    "ci/pyproject.toml": PYPROJECT.format("nightjar-ci", "other") + "[project.optional-dependencies]\npostgres = []\n",
    "models/pyproject.toml": PYPROJECT.format("nightjar-models", "jax"),
    "profiling/pyproject.toml": PYPROJECT.format("nightjar-profiling", "other")
    + "[project.optional-dependencies]\narrow = []\n",
    **{f"docker/locks/{name}.in": "other\n" for name in ("dev", "tools", "docs", "jax", "te-source", "aot")},
    "docker/locks/jax-cpu.in": "jax\nflax\n",
    **{f"docker/locks/{name}": "" for name in ("te-cuda12.txt", "jax-cuda12.txt", "aot.overrides.in")},
}


def make_wheel(folder: Path, name: str, version: str, *requires: str) -> None:
    info = f"{name}-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {one}\n" for one in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        record = ""
        for path, text in files.items():
            wheel.writestr(path, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
            record += f"{path},sha256={digest},{len(text)}\n"
        wheel.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout locked to jax 1.0; an index that has jax 1.1, a pre-release, and a flax that wants jax below 1.1."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for version in ("1.0", "1.1", "1.2rc1"):
        make_wheel(wheels, "jax", version)
    make_wheel(wheels, "flax", "1.0", "jax")
    make_wheel(wheels, "flax", "2.0", "jax<1.1")
    make_wheel(wheels, "other", "1.0")
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(wheels))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "checkout"
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    write_bump(root, bump_locks(root, ["jax==1.0", "flax==1.0"], pre=False, on_step=lambda step: None))
    return root


def versions(
    checkout: Path, pins: list[str], *, pre: bool = False
) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    bump = bump_locks(checkout, pins, pre=pre, on_step=lambda step: None)
    return {change.package: (change.before, change.after) for change in bump.changes}


def test_newest_releases_are_taken_and_nothing_is_written(checkout: Path) -> None:
    before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
    assert versions(checkout, []) == {"jax": (("1.0",), ("1.1",))}  # flax 2 would hold jax back
    assert {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()} == before


def test_a_pre_release_is_taken_when_asked_for(checkout: Path) -> None:
    assert versions(checkout, [], pre=True)["jax"] == (("1.0",), ("1.2rc1",))


def test_a_pin_moves_what_it_names_and_the_bump_is_written(checkout: Path) -> None:
    bump = bump_locks(checkout, ["jax==1.1"], pre=False, on_step=lambda step: None)
    assert {change.package for change in bump.changes} == {"jax"}
    assert bump.changes[0].changelog == "https://docs.jax.dev/en/latest/changelog.html"
    assert {"dev", "models", "jax-cpu"} <= set(bump.changes[0].locks)
    write_bump(checkout, bump)
    assert "jax==1.1 \\\n    --hash=sha256:" in (checkout / "docker/locks/jax-cpu.txt").read_text()
    assert str(checkout.parent) not in (checkout / "docker/locks/jax-cpu.txt").read_text()
    assert versions(checkout, ["jax==1.1"]) == {}


def test_a_set_that_does_not_resolve_is_refused_with_the_package_that_blocks(checkout: Path) -> None:
    with pytest.raises(InputError, match="stands in the way") as caught:
        versions(checkout, ["other==1.0", "jax==1.1", "flax==2.0"])
    assert "jax==1.1 or flax==2.0 stands in the way" in str(caught.value)
    assert "other==1.0" not in str(caught.value).partition("uv says")[0]


def test_a_version_that_does_not_exist_is_named(checkout: Path) -> None:
    with pytest.raises(InputError, match=r"jax==9\.9 stands in the way"):
        versions(checkout, ["jax==9.9"])


@pytest.mark.parametrize(("pin", "said"), [("jax", "names no version"), ("jax=1", "is no requirement")])
def test_what_is_no_pin_is_refused(checkout: Path, pin: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
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
