"""A night of hostile jobs: each has an outcome, none is good, nothing gets out, and report and page can be read."""

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from nightjar_ci.formats.night_results import read_night_results
from tests.ci.executors.slurm.lab import running_lab
from tests.ci.jobs import python
from tests.hostile.images import PYTHON, python_image
from tests.hostile.jobs import ATTACKS, CONFINED, START
from tests.hostile.world import World, check_manners
from tests.places import ROOT

TIMEOUT_S = 2
GRACE_S = 7.0  # of the executor, and a busy machine's


def write_matrix(path: Path, attacks: Mapping[str, str], program: Path, timeout_s: int) -> None:
    """A matrix with a job for each attack, and one whose result is read by a pattern that backtracks."""
    lines = ['schema = "nightjar.matrix/1"', 'name = "hostile"', "[defaults]", f"timeout_s = {timeout_s}"]
    for name, text in attacks.items():
        lines += [
            "[[job]]",
            f"name = {json.dumps(name)}",
            f"command = {json.dumps([str(program), *python(START + text)[1:]])}",
        ]
        if name == "outruns-a-pattern":
            lines += ["[job.adapter]", 'format = "log"', "pattern = '(?P<loss>(a+)+)$'", "curve = [{ field = 'loss' }]"]
    path.write_text("\n".join(lines) + "\n")


def attack(
    tmp_path: Path,
    attacks: Mapping[str, str],
    *options: str,
    timeout_s: int = TIMEOUT_S,
    starts_s: float = 0.0,
    program: Path = Path(sys.executable),
    **variables: str,
) -> World:
    """Runs, gates, reports and publishes a night of these attacks, and checks what is true of all of them."""
    world = World(tmp_path)
    world.make()
    write_matrix(world.work / "m.toml", attacks, program, timeout_s)
    night = world.work / "night"
    run = world.run("run", "m.toml", "--out", night, "--workers", 4, *options, **variables)
    # Each of four workers has its share of the jobs; the commands after it have no jobs to wait for.
    assert run.duration_s < len(attacks) / 4 * (timeout_s + GRACE_S + starts_s)
    policies = ("--policies", ROOT / "ci" / "policies.toml", "--baselines", world.work / "baselines")
    done = [run, *(world.run(name, night, *policies) for name in ("gate", "report"))]
    done.append(world.run("site", "--out", world.work / "site"))
    for end in done:
        check_manners(end)
    assert [end.code for end in done[:2]] == [3, 3], [end.stderr[-1000:] for end in done]
    outcomes = {outcome.job: outcome for outcome in read_night_results(night).night.jobs}
    assert set(outcomes) == set(attacks)
    assert [job for job, outcome in outcomes.items() if outcome.completed] == []
    assert [outcome.message for outcome in outcomes.values() if outcome.state == "not_started"] == []
    states = Counter(outcome.state for outcome in outcomes.values())
    assert states["timeout"] < len(attacks) / 2, "most attacks need no time: these were not tried"
    late = {job: end.duration_s for job, end in outcomes.items() if end.duration_s > timeout_s + GRACE_S + starts_s}
    assert late == {}
    assert world.find_leaks(done) == []
    for page in (*night.glob("*.html"), *world.work.glob("site/**/*.html")):
        text = page.read_text(encoding="utf-8")
        assert "<script>alert" not in text
        assert "onerror=alert(1)>" not in text
    return world


@pytest.mark.slow
def test_nothing_gets_out_of_a_night_without_a_sandbox(tmp_path: Path) -> None:
    attack(tmp_path, ATTACKS, NIGHTJAR_SANDBOX="off")


@pytest.mark.slow
@pytest.mark.slurm
def test_nothing_gets_out_of_a_night_on_a_cluster(tmp_path: Path) -> None:
    with running_lab(2) as lab:
        attack(tmp_path, ATTACKS, "--executor", "slurm", starts_s=30.0, SLURM_CONF=str(lab.conf))


@pytest.mark.slow
@pytest.mark.docker
def test_nothing_gets_out_of_a_night_of_containers(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    with python_image(tmp_path / "image") as image:
        options = ("--executor", "docker", "--environment", f"image:{image}")
        attack(tmp_path / "night", ATTACKS | CONFINED, *options, program=PYTHON, timeout_s=20, starts_s=30.0)
