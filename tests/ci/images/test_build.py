"""`images build` against a `docker` on PATH that records what it is asked; tests/docker has the real one."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from nightjar_ci.images.build import BuildReport, build_images, find_hint, find_revision, needs_root_filesystem
from nightjar_ci.images.tree import Image, check_engine
from nightjar_ci.tools import ToolError
from tests.stand_ins import put_on_path, write_programs

IMAGE = Image(name="jax", tag="nightjar/jax:cpu", parent="base", base="nightjar/ground-floor:trixie", description="JAX")
INSPECTED = json.dumps([{"Id": "sha256:1234", "Size": 882, "RootFS": {"Layers": ["sha256:a", "sha256:b"]}}])
DOCKER = """#!/bin/sh
echo "$FLAVOR $*" >>"$FAKE/calls"
case "$*" in
  "buildx version") ;;
  version*) [ -f "$FAKE/engine" ] || { echo "Cannot connect to the Docker daemon" >&2; exit 1; } ;;
  "buildx bake"*)
    for word; do case "$word" in *id=index,src=*) cat "${word##*src=}" >"$FAKE/index" ;; esac; done
    echo "#1 [internal] load build definition"
    echo "#9 [jax pure 1/1] RUN --mount=type=secret,id=index --mount=type=cache,target=/root    python-layer.sh lock"
    if [ -f "$FAKE/stale" ] && [ -z "$(find "$FAKE/docker/locks/jax-cpu.txt" -newer "$FAKE/stale")" ]; then
      echo "#9 0.7 error: python-layer.sh: jax-cpu.txt of the build context is not that of the checkout."
      exit 1
    fi
    [ ! -f "$FAKE/broken" ] || { echo "ERROR: no space left on device"; exit 1; }
    ;;
  "image ls"*ground-floor*) cat "$FAKE/ground-floor" 2>/dev/null || true ;;
  "image ls"*absent*) ;;
  "image ls"*) echo sha256:1234 ;;
  pull*) echo "no such host" >&2; exit 1 ;;
  "image inspect"*) cat "$FAKE/inspected" ;;
esac
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder: `engine` there makes the engine answer, `broken` fails a build, `ground-floor` is the base image."""
    (tmp_path / "inspected").write_text(INSPECTED)
    for name in ("engine", "ground-floor"):
        (tmp_path / name).write_text("sha256:0\n")
    script = '#!/bin/sh\necho made >"$FAKE/ground-floor"\necho "Making Debian"\n'
    write_programs(tmp_path / "docker", {"ground-floor.sh": script})
    (tmp_path / "docker/versions.json").write_text('{"variable": {"DEFAULT_PYTHON": {"default": "3.13"}}}')
    put_on_path(monkeypatch, tmp_path / "bin", {"docker": DOCKER})
    monkeypatch.setenv("FAKE", str(tmp_path))
    return tmp_path


def build(fake: Path, environ: Mapping[str, str] | None = None) -> tuple[BuildReport, list[str]]:
    steps: list[str] = []
    report = build_images(fake, [IMAGE], flavor="cuda12", environ=environ or {}, on_step=steps.append)
    return report, steps


def test_build_reports_the_images_and_shows_the_steps_without_their_mounts(fake: Path) -> None:
    report, steps = build(fake)
    assert steps == ["[jax pure 1/1] RUN python-layer.sh lock"]
    assert [(image.tag, image.id, image.size_bytes, image.layers) for image in report.images] == [
        ("nightjar/jax:cpu", "sha256:1234", 882, ("sha256:a", "sha256:b"))
    ]
    assert "cuda12 buildx bake --file docker/versions.json" in (fake / "calls").read_text()


def test_index_of_this_machine_reaches_the_build_as_a_secret_and_not_as_an_argument(fake: Path) -> None:
    build(fake, {"UV_DEFAULT_INDEX": "http://127.0.0.1:1/wheels"})
    assert "export PIP_INDEX_URL=http://127.0.0.1:1/wheels" in (fake / "index").read_text()
    assert "127.0.0.1:1" not in (fake / "calls").read_text()


def test_a_missing_root_filesystem_is_built_first_and_another_base_never(fake: Path) -> None:
    (fake / "ground-floor").unlink()
    _, steps = build(fake)
    assert steps[:2] == ["docker/ground-floor.sh: builds nightjar/ground-floor:trixie", "Making Debian"]
    assert (fake / "ground-floor").exists()
    assert not needs_root_filesystem("debian:trixie-slim", exists=False)


def test_with_an_archive_the_script_of_the_root_filesystem_checks_its_day(fake: Path) -> None:
    _, steps = build(fake, {"DEBIAN_SNAPSHOT": "http://127.0.0.1:1/archive"})
    assert steps[0] == "docker/ground-floor.sh: builds nightjar/ground-floor:trixie"


def test_another_base_is_pulled_first_and_an_unreachable_one_is_reported(fake: Path) -> None:
    base = replace(IMAGE, base="registry.example/absent:1")
    with pytest.raises(ToolError, match="no such host") as caught:
        build_images(fake, [base], flavor="cpu", environ={"IMAGE_ARCH": "arm64"}, on_step=lambda step: None)
    assert "check BASE_IMAGE" in str(caught.value)
    assert "pull --platform linux/arm64 registry.example/absent:1" in (fake / "calls").read_text()
    assert "buildx bake" not in (fake / "calls").read_text()


def test_a_failed_step_is_reported_with_its_last_lines(fake: Path) -> None:
    (fake / "broken").touch()
    with pytest.raises(ToolError, match="no space left on device") as caught:
        build(fake)
    assert caught.value.exit_code == 3
    assert "docker builder prune" in str(caught.value.hint)


def test_a_lock_that_the_engine_cached_in_an_older_copy_is_touched_and_built_again(fake: Path) -> None:
    (fake / "docker/locks").mkdir()
    lock = fake / "docker/locks/jax-cpu.txt"
    lock.touch()
    (fake / "stale").touch()
    os.utime(lock, (0, 0))
    _, steps = build(fake)
    assert "docker/locks/jax-cpu.txt: the engine cached an older copy of the same size and time" in "\n".join(steps)
    assert (fake / "calls").read_text().count("buildx bake") == 2


def test_a_lock_that_still_differs_after_it_was_touched_fails_the_build(fake: Path) -> None:
    (fake / "docker/locks").mkdir()
    (fake / "docker/locks/jax-cpu.txt").touch()
    (fake / "stale").touch()
    os.utime(fake / "stale", (2**32, 2**32))
    with pytest.raises(ToolError, match="is not that of the checkout"):
        build(fake)
    assert (fake / "calls").read_text().count("buildx bake") == 2


@pytest.mark.parametrize(
    ("output", "hint"),
    [
        ("error: Hash mismatch for `six==1.17.0`", "another file than the locked one"),
        ("Because there is no version of jax==99 and you require", "the index lacks a pinned version"),
    ],
)
def test_a_changed_wheel_and_a_pin_that_the_index_lacks_have_a_hint(output: str, hint: str) -> None:
    assert hint in str(find_hint(output))
    assert find_hint("a compiler failed") is None


def test_a_machine_without_docker_gets_the_same_hint(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fake / "bin/docker").unlink()
    monkeypatch.setenv("PATH", os.fspath(fake / "bin"))
    with pytest.raises(ToolError, match=r"`docker buildx version` could not be started: No such file") as caught:
        check_engine()
    assert "docker/engine.sh" in str(caught.value)


@pytest.mark.git
def test_a_bump_labels_no_image_dirty_and_an_edit_does(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        argv = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    (tmp_path / "docker/locks").mkdir(parents=True)
    for name in ("docker/locks/jax-cpu.txt", "docker/versions.json", "docker/layers.txt"):
        (tmp_path / name).write_text("1")
    git("init", "--quiet")
    git("add", "--all")
    git("commit", "--quiet", "--message=x")
    commit = git("rev-parse", "HEAD").strip()
    (tmp_path / "docker/locks/jax-cpu.txt").write_text("2")
    (tmp_path / "docker/locks/nightly.json").write_text("{}")
    (tmp_path / "docker/versions.json").write_text("2")
    assert find_revision(tmp_path) == commit
    (tmp_path / "docker/layers.txt").write_text("2")
    assert find_revision(tmp_path) == f"{commit}-dirty"
