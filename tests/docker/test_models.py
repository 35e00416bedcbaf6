"""What the models image is for: its workloads train in it, and leave a result that CI reads."""

from pathlib import Path

import pytest

from nightjar_ci.formats.run_record import read_run
from nightjar_ci.images.tree import Image
from tests.docker.conftest import Runner, find_flavor
from tests.docker.test_jax import locked_versions

pytestmark = [pytest.mark.docker, pytest.mark.slow]


def shared_folder(folder: Path) -> dict[str, object]:
    """Options of a container that writes into a folder of this machine as another user, and nowhere else but /tmp."""
    folder.chmod(0o777)
    return {
        "volumes": {str(folder): {"bind": "/out", "mode": "rw"}},
        "read_only": True,
        "tmpfs": {"/tmp": "rw,mode=1777"},
        "environment": {"JAX_PLATFORMS": "cpu"},
    }


def test_gpt_trains_offline_with_a_read_only_root(run: Runner, image: Image, tmp_path: Path) -> None:
    run("nightjar-models", "train", "gpt_tiny", "--steps", "5", "--out", "/out", **shared_folder(tmp_path))
    record = read_run(tmp_path / "result.json")
    loss = record.curve("loss")
    assert loss is not None
    assert len(loss.values) >= 2
    assert record.status == "completed"
    machine = run("uname", "-m").strip()
    locked = locked_versions(f"jax-{find_flavor(image)}", record.environment.python, machine)
    assert record.environment.packages["jaxlib"] == locked["jaxlib"]


def test_a_training_is_captured_in_the_image(run: Runner, tmp_path: Path) -> None:
    train = ["nightjar-models", "train", "gpt_tiny", "--steps", "5", "--out", "/tmp/run"]
    run("nightjar-profiling", "capture", "--out", "/out/capture", "--", *train, **shared_folder(tmp_path))
    assert (tmp_path / "capture" / "profile.json").stat().st_size > 0


def test_the_commands_of_the_three_packages_start(run: Runner) -> None:
    for command in ("nightjar-ci", "nightjar-models", "nightjar-profiling"):
        assert "Usage" in run(command, "--help")
