"""Bisections that start from the verdict of a night: which test, which ends, which series."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nightjar_ci.bisect.options.from_verdict import find_worst, options_from_verdict
from nightjar_ci.bisect.options.options import BisectOptions
from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import write_json
from nightjar_ci.formats.night_folder import Night, write_night
from nightjar_ci.formats.outcome import make_outcome
from nightjar_ci.formats.verdict import NightVerdicts, Verdict, write_verdicts
from tests.ci.bisect.test_command import bisect
from tests.ci.jobs import make_job
from tests.ci.nights import record


def nights(tmp_path: Path, verdict: Verdict, *, good: dict[str, str], bad: dict[str, str], image: str = "") -> Path:
    """A good night, a night that cannot tell, and a red one; each in the dated tag of an image, where one is given."""
    folder = tmp_path / "nights"
    for number, (status, packages) in enumerate([("ok", good), ("cannot_tell", good), ("regressed", bad)]):
        night = folder / f"2026-11-0{number + 1}T0300-000{number}"
        job = night / "jobs" / "demo-s0"
        job.mkdir(parents=True)
        one = record(0, values=[5.5, 5.1, 4.8], job="demo-s0")
        environment = one.environment.model_copy(update={"packages": packages})
        write_json(job / "result.json", one.model_copy(update={"environment": environment}))
        outcome = make_outcome(
            make_job("python", "-m", "train", "--out", str(job)), state="completed", exit_code=0, started_at="x"
        )
        if image:
            outcome = outcome.model_copy(
                update={"environment": f"image:{image}-{night.name[:10]}", "executor": "docker"}
            )
        whole = Night(id=night.name, matrix="m", started_at=night.name, finished_at="y", git=None, jobs=(outcome,))
        write_night(night, whole)
        told = verdict.model_copy(update={"status": status})
        write_verdicts(night / "verdicts.json", NightVerdicts(night=night.name, verdicts=(told,)))
    return night / "verdicts.json"


LOSS = Verdict(
    series="demo/loss", judge="convergence", status="ok", effect=None, interval=None, p=None, n=1, policy={}, runs=(),
    explanation="",
)  # fmt: skip


def test_a_verdict_names_the_test_and_both_ends(tmp_path: Path) -> None:
    old, new = {"jax": "0.10.1", "numpy": "2.4.6"}, {"jax": "0.10.2", "numpy": "2.4.6"}
    path = nights(tmp_path, LOSS, good=old, bad=new)
    options = options_from_verdict(BisectOptions(command=()), path, "demo/loss")
    assert options.command == ("python", "-m", "train", "--out", "{out}")
    assert (options.good, options.bad, options.judge, options.current) == (
        ("jax==0.10.1",),
        ("jax==0.10.2",),
        "convergence",
        True,
    )
    with pytest.raises(InputError, match="regressed: demo/loss"):
        options_from_verdict(BisectOptions(command=()), path, "demo/lose")
    shutil.rmtree(tmp_path / "nights" / "2026-11-01T0300-0000")
    with pytest.raises(InputError, match="no earlier night"):
        options_from_verdict(BisectOptions(command=()), path, "demo/loss")


def test_a_verdict_of_a_night_in_an_image_is_bisected_over_its_nights(tmp_path: Path) -> None:
    path = nights(tmp_path, LOSS, good={"jax": "1"}, bad={"jax": "2"}, image="localhost:5000/nightjar:models-cpu")
    options = options_from_verdict(BisectOptions(command=()), path, "demo/loss")
    assert (options.images, options.good, options.bad, options.executor) == (
        "localhost:5000/nightjar:models-cpu",
        ("2026-11-01",),
        ("2026-11-03",),
        "docker",
    )


def test_without_a_series_the_worst_regression_is_bisected_and_a_good_night_has_none(tmp_path: Path) -> None:
    path = nights(tmp_path, LOSS, good={"jax": "1"}, bad={"jax": "2"})
    assert find_worst(path) == "demo/loss"
    done = bisect("--verdict", path.parent.parent / "2026-11-01T0300-0000" / "verdicts.json")
    assert done.returncode == 0
    assert "nothing regressed" in done.stdout


def test_a_verdict_without_a_difference_is_not_bisected(tmp_path: Path) -> None:
    path = nights(tmp_path, LOSS, good={"jax": "1"}, bad={"jax": "1"})
    done = bisect("--verdict", path, "demo/loss")
    assert done.returncode == 2
    assert "neither packages nor the commit differ" in done.stderr
