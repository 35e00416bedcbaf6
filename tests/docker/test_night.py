"""A job in an image is gated like any other: the GPT of the nightly, trained by the docker executor."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nightjar_ci.baselines.baseline import read_facts
from nightjar_ci.formats.run_record import read_run
from nightjar_ci.images.tree import Image
from tests.docker.conftest import CHECKOUT

pytestmark = [pytest.mark.docker, pytest.mark.weekly, pytest.mark.timeout(2000)]

JOB = "gpt_tiny-train-cpu-f32-dp1-s0"


def test_the_gpt_in_the_models_image_is_trained_and_gated(tree: tuple[Image, ...], tmp_path: Path) -> None:
    tag = {image.name: image.tag for image in tree}.get("models")
    if tag is None:
        pytest.skip("the models image is not under test")
    command = [sys.executable, "-m", "nightjar_ci", "nightly", str(CHECKOUT / "ci" / "matrix" / "nightly-cpu.toml")]
    options = {
        "--jobs": JOB,
        "--executor": "docker",
        "--environment": f"image:{tag}",
        "--policies": str(CHECKOUT / "ci" / "policies.toml"),
        "--baselines": str(CHECKOUT / "ci" / "baselines"),
        "--out": str(tmp_path / "night"),
    }
    ended = subprocess.run(
        [*command, *(part for option in options.items() for part in option)],
        env={**os.environ, "NIGHTJAR_STATE_DIR": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode in (0, 4), ended.stderr
    key = read_run(tmp_path / "night" / "jobs" / JOB / "result.json").environment.facts_key
    # Of a jaxlib of tonight no facts are committed: the gate cannot tell, and the image is good.
    known = read_facts(CHECKOUT / "ci" / "baselines", JOB.removesuffix("-s0"), key) is not None
    assert ended.returncode == (0 if known else 4)
    (outcome,) = json.loads((tmp_path / "night" / "night.json").read_text())["jobs"]
    assert (outcome["state"], outcome["executor"], outcome["environment"]) == ("completed", "docker", f"image:{tag}")
    verdicts = json.loads((tmp_path / "night" / "verdicts.json").read_text())["verdicts"]
    found = {(verdict["judge"], verdict["status"]) for verdict in verdicts}
    assert found == {("convergence", "ok"), ("facts", "ok" if known else "cannot_tell")}
    assert (tmp_path / "night" / "report.html").stat().st_uid == os.getuid()
