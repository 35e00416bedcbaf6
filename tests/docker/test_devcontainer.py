"""What the devcontainer is for: the tools of development are on PATH, for a user that is not root."""

from __future__ import annotations

import pytest

from tests.docker.conftest import Runner

pytestmark = pytest.mark.docker


def test_the_tools_of_development_start(run: Runner) -> None:
    for command in ("git", "gcc", "pytest", "ruff", "mypy", "nox", "uv"):
        assert run(command, "--version")
