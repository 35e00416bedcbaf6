"""Dockerfiles hold no logic, and name nothing that must be fetched to read them."""

from pathlib import Path

import pytest

from tests.docker.conftest import CHECKOUT

DOCKERFILES = sorted(path for path in (CHECKOUT / "docker").glob("Dockerfile.*") if path.suffix != ".dockerignore")


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_step_is_at_most_three_lines_and_no_frontend_is_pulled(path: Path) -> None:
    text = path.read_text()
    assert "syntax=" not in text
    steps = text.replace("\\\n", "\0").splitlines()
    assert max(step.count("\0") for step in steps) < 3
