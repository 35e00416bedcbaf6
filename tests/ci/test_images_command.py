from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nightjar_ci.images.tree import find_checkout

CHECKOUT = find_checkout(Path(__file__).parent)
LABELS = {"org.opencontainers.image.base.name": "debian:trixie", "org.opencontainers.image.description": "x"}
TREE = {
    name: {
        "tags": [f"nightjar/{name}:cpu"],
        "labels": {**LABELS, "org.opencontainers.image.title": f"nightjar/{name}"},
        "contexts": {parent: f"target:{parent}" for parent in parents},
    }
    for name, parents in {"base": [], "jax": ["base"]}.items()
}
DOCKER = """#!/bin/sh
case "$*" in
  *--print*) cat "$0.json" ;;
  "buildx version") ;;
  *) echo "no daemon" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A machine whose `docker` knows a tree of two images, and whose engine never answers."""
    program = tmp_path / "docker"
    program.write_text(DOCKER)
    (tmp_path / "docker.json").write_text(json.dumps({"target": TREE}))
    program.chmod(0o755)
    return {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}


def images(*arguments: str, environ: dict[str, str], cwd: Path = CHECKOUT) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", "from nightjar_ci.cli import main; main()", "images", *arguments]
    return subprocess.run(argv, env=environ, cwd=cwd, capture_output=True, text=True, check=False)


def test_list_prints_the_tree_as_json(environ: dict[str, str]) -> None:
    done = images("list", "--json", environ=environ)
    assert [(image["name"], image["parent"]) for image in json.loads(done.stdout)] == [("base", None), ("jax", "base")]


def test_dry_run_prints_a_command_and_builds_nothing(environ: dict[str, str]) -> None:
    done = images("build", "jax", "--flavor", "cuda12", "--dry-run", environ=environ)
    assert done.returncode == 0
    assert done.stdout.startswith("FLAVOR=cuda12 docker buildx bake --file docker/versions.json")
    assert done.stdout.endswith(" jax\n")


@pytest.mark.parametrize("command", ["build", "test"])
def test_no_engine_ends_with_3_and_the_next_step(environ: dict[str, str], command: str) -> None:
    done = images(command, environ=environ)
    assert done.returncode == 3
    assert done.stdout == ""
    assert "no daemon" in done.stderr
    assert "Hint: docker/engine.sh" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "jaxx"], "unknown image 'jaxx': expected one of base, jax."),
        (["list", "--flavor", "cuda"], "unknown flavor 'cuda': expected one of cpu, cuda12, cuda13."),
        (["build", "--fast"], "No such option"),
    ],
)
def test_wrong_use_ends_with_2_and_names_the_value(environ: dict[str, str], arguments: list[str], message: str) -> None:
    done = images(*arguments, environ=environ)
    assert done.returncode == 2
    assert message in done.stderr


def test_outside_a_checkout_it_says_so(environ: dict[str, str], tmp_path: Path) -> None:
    done = images("list", environ=environ, cwd=tmp_path)
    assert done.returncode == 2
    assert "Hint: run it in a checkout of Nightjar" in done.stderr


def test_locks_can_be_rehearsed_without_uv(environ: dict[str, str]) -> None:
    done = images("lock", "--upgrade", "--dry-run", environ=environ)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].split()[-1] == "docker/locks/dev.txt"
    assert all("--upgrade" in line for line in done.stdout.splitlines())
