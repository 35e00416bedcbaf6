"""The scripts of docker/ around a `docker` that answers or does not: what is there is left alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.docker.conftest import CHECKOUT

NOBODY = 65534
ANSWERS = "version buildx image"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """PATH with a `docker` that knows the subcommands of `DOCKER_ANSWERS`, and an `apt-get` that must not be called."""
    programs = {"docker": 'case "$DOCKER_ANSWERS" in *"$1"*) ;; *) exit 1 ;; esac', "apt-get": "exit 9"}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    tmp_path.chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


def script(
    name: str, *arguments: str, environ: dict[str, str], user: int | None = None
) -> subprocess.CompletedProcess[str]:
    path = CHECKOUT / "docker" / name
    argv = [str(path), *arguments] if user is None else ["bash", "-s", *arguments]
    text = None if user is None else path.read_text()  # the checkout may be closed to others
    return subprocess.run(
        argv, env=environ, cwd="/", input=text, user=user, capture_output=True, text=True, check=False
    )


def test_an_engine_that_answers_is_left_alone(environ: dict[str, str]) -> None:
    done = script("engine.sh", environ={**environ, "DOCKER_ANSWERS": ANSWERS})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_engine_without_buildx_is_not_replaced(environ: dict[str, str]) -> None:
    done = script("engine.sh", environ={**environ, "DOCKER_ANSWERS": "version"})
    assert done.returncode == 3
    assert "Hint: install docker-buildx" in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="nobody is reached from root only")
def test_without_root_the_engine_script_says_who_must_run_it(environ: dict[str, str]) -> None:
    done = script("engine.sh", environ=environ, user=NOBODY)
    assert done.returncode == 2
    assert f"uid {NOBODY} cannot install one" in done.stderr
    assert "Hint: run it as root" in done.stderr


def test_a_ground_floor_that_is_there_is_not_made_again(environ: dict[str, str]) -> None:
    done = script("ground-floor.sh", environ={**environ, "DOCKER_ANSWERS": ANSWERS})
    assert (done.returncode, done.stdout, done.stderr) == (0, "nightjar/ground-floor:trixie\n", "")


def test_ground_floor_without_an_engine_names_the_script_that_makes_one(environ: dict[str, str]) -> None:
    done = script("ground-floor.sh", environ=environ)
    assert done.returncode == 3
    assert "Hint: run docker/engine.sh as root" in done.stderr


def test_ground_floor_refuses_an_argument_that_it_does_not_know(environ: dict[str, str]) -> None:
    done = script("ground-floor.sh", "--forse", environ=environ)
    assert done.returncode == 2
    assert "unknown argument '--forse': expected --force" in done.stderr


def test_python_layer_refuses_a_layer_that_it_does_not_know(environ: dict[str, str]) -> None:
    done = script("python-layer.sh", "wheel", environ=environ)
    assert done.returncode == 2
    assert "unknown layer 'wheel': expected tools, split, install, source or wheels" in done.stderr
