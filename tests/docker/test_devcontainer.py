"""What the devcontainer is for: the tools of development are on PATH, for a user that is not root."""

import json

import pytest

from nightjar_ci.images.tree import Image
from tests.docker.conftest import CHECKOUT, Runner

pytestmark = pytest.mark.docker


def test_the_tools_of_development_start(run: Runner) -> None:
    for command in ("git", "gcc", "pytest", "ruff", "mypy", "nox", "uv"):
        assert run("sh", "-c", f"{command} --version 2>&1")  # nox says it on stderr


def test_an_editor_finds_the_image_and_the_sources_of_the_checkout(run: Runner, image: Image) -> None:
    settings = json.loads((CHECKOUT / ".devcontainer/devcontainer.json").read_text())
    assert settings["image"].partition(":")[0] == image.tag.partition(":")[0]
    path = settings["containerEnv"]["PYTHONPATH"].replace("${containerWorkspaceFolder}", "/checkout")
    mounts = {
        str(CHECKOUT / name): {"bind": f"/checkout/{name}", "mode": "ro"} for name in ("ci", "models", "profiling")
    }
    code = "import nightjar_ci, nightjar_models, nightjar_profiling as p; print(nightjar_ci.__file__, p.__file__)"
    found = run("python", "-c", code, environment={"PYTHONPATH": path}, volumes=mounts, user=settings["remoteUser"])
    assert found.split() == [
        "/checkout/ci/nightjar_ci/__init__.py",
        "/checkout/profiling/nightjar_profiling/__init__.py",
    ]
