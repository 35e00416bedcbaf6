"""The line behind a red curve, from a run of `nightjar-models explain` in the night."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nightjar_ci.causes.causes import Cause
from nightjar_ci.causes.explained import FOLDER, LIMIT_S, ask, read_answer
from nightjar_ci.environments.current import find_current
from nightjar_ci.environments.prepare import Environments, PreparedEnvironment
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_results import NightResults, read_night_results
from tests.ci.jobs import make_job
from tests.ci.nights import CELL, make_night, outcome, record
from tests.ci.site.test_site import make_verdict

COMMAND = ("nightjar-models", "train", "gpt_tiny", "--set", "model.layers=2", "--out", "{out}")
FAKE = """#!{python}
import json, os, sys
print("progress", file=sys.stderr)
print(json.dumps({{"text": " ".join(sys.argv[1:]), "prefix": os.environ["NIGHTJAR_EXPLAINED"]}}))
sys.exit(1)
"""


def red(*changes: str, judge: str = "convergence") -> Cause:
    verdict = make_verdict("regressed", judge=judge)
    return Cause(
        kind="regressed", title="", explanation="higher", verdicts=(verdict,), since="n", good="m", nights=1,
        changes=changes,
    )  # fmt: skip


CAUSE = red("jax 0.9.1 -> 0.10.2", "numpy 2.0.0 -> 2.1.0")


@pytest.fixture
def results(tmp_path: Path) -> NightResults:
    ran = outcome().model_copy(update={"command": COMMAND})
    make_night(tmp_path / "night", [(ran, record())])
    return read_night_results(tmp_path / "night")


@pytest.fixture
def job() -> Job:
    return make_job(*COMMAND, cell=CELL, id=f"{CELL}-s0", timeout_s=9999.0)


@pytest.fixture
def environments(tmp_path: Path) -> Environments:
    """The night's own, whose `nightjar-models` repeats its arguments, and the one of another JAX."""
    folder, current = tmp_path / "bin", find_current()
    folder.mkdir()
    (folder / "nightjar-models").write_text(FAKE.format(python=current.executable))
    (folder / "nightjar-models").chmod(0o755)
    made, here = Environments(), PreparedEnvironment(name="a", kind="uv", bin_dir=folder, interpreter=current)
    made._prepared.update({"current": here, "uv:jax==0.9.1": here})
    return made


def test_a_red_curve_under_another_jax_is_explained_once(
    results: NightResults, job: Job, environments: Environments
) -> None:
    assert read_answer(CAUSE, results) is None
    assert ask(results, [red(), CAUSE], [make_job("true"), job], environments)
    python = find_current().executable
    text = f"explain gpt_tiny --set model.layers=2 --against python={python} --json"
    assert read_answer(CAUSE, results) == f"{text[:300]} (against jax==0.9.1)"
    folder = results.folder / FOLDER / CELL
    assert json.loads((folder / "stdout.log").read_text())["prefix"] == str(find_current().prefix)
    assert json.loads((folder / "outcome.json").read_text())["job"] == f"{CELL}-explain"
    assert not ask(results, [CAUSE], [job], environments)  # the night asked already
    assert LIMIT_S == 300


def test_nothing_is_asked_that_has_no_answer_here(results: NightResults, job: Job, environments: Environments) -> None:
    assert not ask(results, [red(), red("numpy 2.0.0 -> 2.1.0")], [job], environments)
    assert not ask(results, [red("jax 0.9.1 -> 0.10.2", judge="facts")], [job], environments)
    assert not ask(results, [CAUSE], [], environments)
    for elsewhere in (replace(job, executor="slurm"), replace(job, environment="image:a:b")):
        assert not ask(results, [CAUSE], [elsewhere], environments)
    environments._prepared["uv:jax==0.9.1"] = EnvironmentFailedError("jax==0.9.1 has no wheel.")
    assert not ask(results, [CAUSE], [job], environments)
    assert not (results.folder / FOLDER).exists()


@pytest.mark.parametrize(
    ("output", "answer"),
    [
        ("null\n", "no operation differs (against jax==0.9.1)"),
        ('{"text": "first differs at a.py:3"}\n', "first differs at a.py:3 (against jax==0.9.1)"),
        ("", None),
        ("error: no\n", None),
        ('{"text": ""}', None),
        ("[1]", None),
    ],
)
def test_an_answer_is_the_last_line_of_the_output(results: NightResults, output: str, answer: str | None) -> None:
    folder = results.folder / FOLDER / CELL
    folder.mkdir(parents=True)
    (folder / "stdout.log").write_text(output)
    assert read_answer(CAUSE, results) == answer
