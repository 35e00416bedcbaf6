"""The line behind a red curve, from a run of `nightjar-models explain` in the night."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nightjar_ci.causes.causes import Cause
from nightjar_ci.causes.explained import AGAINST, FOLDER, ask, read_answer
from nightjar_ci.environments.current import find_current
from nightjar_ci.environments.prepare import Environments, PreparedEnvironment
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.formats.documents import write_json
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_results import NightResults, read_night_results
from nightjar_ci.formats.run_record import Environment
from nightjar_ci.gate.reruns import EnvironmentOf
from tests.ci.jobs import make_job
from tests.ci.nights import CELL, ENVIRONMENT, make_night, outcome, record
from tests.ci.site.test_site import make_verdict
from tests.stand_ins import write_programs

COMMAND = ("nightjar-models", "train", "gpt_tiny", "--set", "model.layers=2", "--out", "{out}")
FAKE = """#!{python}
import json, os, sys
print("progress", file=sys.stderr)
print(json.dumps({{"text": " ".join(sys.argv[1:]), "prefix": os.environ.get("NIGHTJAR_EXPLAINED")}}))
sys.exit(1)
"""


JOB = make_job(*COMMAND, cell=CELL, id=f"{CELL}-s0", timeout_s=9999.0)
SHA = "0123456789abcdef" * 2 + "01234567"
CPU = {"model": "x", "cores": 2, "memory_bytes": 1, "architecture": "x", "instructions": ["avx", "avx2", "sse4_2"]}


def red(*, judge: str = "convergence", good: str | None = "m") -> Cause:
    verdict = make_verdict("regressed", judge=judge)
    return Cause(kind="regressed", title="", explanation="", verdicts=(verdict,), since="n", good=good, nights=1)


CAUSE = red()


def environment(jax: str = "0.10.2", sha: str = "f" * 40, flags: str = "", cpu: dict[str, Any] = CPU) -> Environment:
    git = {"sha": sha, "dirty": False}
    changes = {"packages": {"jax": jax}, "git": git, "flags": {"XLA_FLAGS": flags}, "cpu": cpu}
    return Environment.model_validate(ENVIRONMENT | changes)


def nights(then: Environment | None, tonight: Environment | None = None) -> EnvironmentOf:
    return lambda _cell, night: then if night == "m" else tonight or environment()


OLD_JAX = nights(environment(jax="0.9.1"))


@pytest.fixture
def results(tmp_path: Path) -> NightResults:
    ran = outcome().model_copy(update={"command": COMMAND})
    make_night(tmp_path / "night", [(ran, record())])
    return read_night_results(tmp_path / "night")


@pytest.fixture
def environments(tmp_path: Path) -> Environments:
    """The night's own, whose `nightjar-models` repeats its arguments, and those of another JAX and another commit."""
    folder, current = tmp_path / "bin", find_current()
    write_programs(folder, {"nightjar-models": FAKE.format(python=current.executable)})
    made, here = Environments(), PreparedEnvironment(name="a", kind="uv", bin_dir=folder, interpreter=current)
    other = replace(here, interpreter=replace(current, prefix=tmp_path / "other"))
    made._prepared.update({"current": here, "uv:jax==0.9.1": other, f"commit:{SHA}:current": other})
    return made


def is_asked(
    results: NightResults, made: Environments, *causes: Cause, of: EnvironmentOf = OLD_JAX, job: Job = JOB
) -> bool:
    return ask(results, causes or (CAUSE,), [job], made, of, SHA.__eq__)


def test_a_red_curve_under_another_jax_is_explained_once(
    results: NightResults, environments: Environments, tmp_path: Path
) -> None:
    assert read_answer(CAUSE, results) is None
    assert is_asked(results, environments, red(judge="facts"), CAUSE)
    python = find_current().executable
    text = f"explain gpt_tiny --set model.layers=2 --against python={python} --json"
    assert read_answer(CAUSE, results) == f"{text[:300]} (against jax==0.9.1)"
    folder = results.folder / FOLDER / CELL
    assert json.loads((folder / "stdout.log").read_text())["prefix"] == str(tmp_path / "other")
    assert json.loads((folder / "outcome.json").read_text())["job"] == f"{CELL}-explain"
    assert not is_asked(results, environments)  # the night asked already


@pytest.mark.parametrize(
    ("then", "tonight", "against"),
    [
        (environment(sha=SHA), environment(), "commit 0123456789ab"),
        (environment(flags="--xla_cpu_max_isa=SSE4_2"), environment(), "another instruction set, isa=SSE4_2"),
        (environment(), environment(flags="--xla_cpu_max_isa=AVX"), "another instruction set, isa=AVX2"),
        (environment(cpu={**CPU, "instructions": ["sse4_2"]}), environment(), "another instruction set, isa=SSE4_2"),
    ],
)
def test_another_commit_or_instruction_set_is_asked_for(
    then: Environment, tonight: Environment, against: str, results: NightResults, environments: Environments
) -> None:
    assert is_asked(results, environments, of=nights(then, tonight))
    answer = read_answer(CAUSE, results) or ""
    assert answer.endswith(f" (against {against})")
    assert ("--against isa=" in answer) == ("isa=" in against)


def test_nothing_is_asked_that_has_no_answer_here(results: NightResults, environments: Environments) -> None:
    for then in (
        None,
        environment(),
        environment(sha="a" * 40),  # a commit that is not here
        environment(cpu={**CPU, "instructions": ["sse4_2", "avx", "avx2", "avx512f"]}),  # this processor lacks one
        environment(cpu={**CPU, "instructions": None}),
    ):
        assert not is_asked(results, environments, of=nights(then))
    assert not is_asked(results, environments, red(judge="facts"))
    assert not is_asked(results, environments, red(good=None))
    for elsewhere in (replace(JOB, executor="slurm"), replace(JOB, environment="image:a:b"), replace(JOB, cell="b")):
        assert not is_asked(results, environments, job=elsewhere)
    environments._prepared[f"commit:{SHA}:current"] = environments.get("current")  # the models are not in the commit
    assert not is_asked(results, environments, of=nights(environment(sha=SHA)))
    environments._prepared["uv:jax==0.9.1"] = EnvironmentFailedError("jax==0.9.1 has no wheel.")
    assert not is_asked(results, environments)
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
    write_json(folder / "outcome.json", outcome(env={AGAINST: "jax==0.9.1"}))
    assert (read_answer(CAUSE, results) or None) == answer
