"""Bisections that start from the verdict of a night: which test, which ends, which series."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nightjar_ci.bisect.ladders.rung import Rung
from nightjar_ci.bisect.options.from_verdict import find_worst, options_from_verdict
from nightjar_ci.bisect.options.options import BisectOptions, options_from_parameters
from nightjar_ci.bisect.probing.rung_run import _executor_of
from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import write_json
from nightjar_ci.formats.night_folder import read_night, write_night
from nightjar_ci.formats.outcome import make_outcome
from nightjar_ci.formats.resources import Resources
from nightjar_ci.formats.run_record import LocalPackage
from nightjar_ci.formats.suite import WHOLE_COMMAND, Case, Suite
from nightjar_ci.formats.verdict import NightVerdicts, Verdict, read_verdicts
from tests.ci.bisect.test_command import answer, bisect, program, rungs
from tests.ci.jobs import make_job
from tests.ci.nights import make_night, record


def nights(tmp_path: Path, verdict: Verdict, *, good: dict[str, str], bad: dict[str, str], image: str = "") -> Path:
    """A good night, a night that cannot tell, and a red one; each in the dated tag of an image, where one is given."""
    folder = tmp_path / "nights"
    for number, (status, packages) in enumerate([("ok", good), ("cannot_tell", good), ("regressed", bad)]):
        night = folder / f"2026-11-0{number + 1}T0300-000{number}"
        one = record(0, values=[5.5, 5.1, 4.8], job="demo-s0")
        environment = one.environment.model_copy(update={"packages": packages})
        job = make_job("python", "-m", "train", "--out", str(night / "jobs" / "demo-s0"))
        outcome = make_outcome(job, state="completed", exit_code=0, started_at="x")
        if image:
            outcome = outcome.model_copy(
                update={"environment": f"image:{image}-{night.name[:10]}", "executor": "docker"}
            )
        make_night(night, [(outcome, one.model_copy(update={"environment": environment}))], night.name)
        told = verdict.model_copy(update={"status": status})
        write_json(night / "verdicts.json", NightVerdicts(night=night.name, verdicts=(told,)))
    return night / "verdicts.json"


LOSS = Verdict(
    series="demo/loss", judge="convergence", status="ok", effect=None, interval=None, p=None, n=1, policy={}, runs=(),
    explanation="",
)  # fmt: skip


def ask(path: Path, series: str = "demo/t.test_a.test_clip", **given: Any) -> BisectOptions:
    return options_from_verdict(BisectOptions(command=(), **given), path, series)


def edit_result(night: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = night / "jobs" / "demo" / "result.json"
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def edit_environment(night: Path, **changes: object) -> None:
    edit_result(night, lambda document: document["environment"].update(changes))


def test_a_verdict_names_the_test_and_both_ends(tmp_path: Path) -> None:
    old, new = {"jax": "0.10.1", "numpy": "2.4.6"}, {"jax": "0.10.2", "numpy": "2.4.6"}
    path = nights(tmp_path, LOSS, good=old, bad=new)
    options = ask(path, "demo/loss")
    assert options.command == ("python", "-m", "train", "--out", "{out}")
    assert (options.good, options.bad) == (("jax==0.10.1",), ("jax==0.10.2",))
    assert (options.like, options.current) == ("demo/convergence", True)
    with pytest.raises(InputError, match="regressed: demo/loss"):
        ask(path, "demo/lose")
    shutil.rmtree(tmp_path / "nights" / "2026-11-01T0300-0000")
    with pytest.raises(InputError, match="no earlier night"):
        ask(path, "demo/loss")
    named = ask(path, "demo/loss", good=("jax==0.9",), bad=("jax==0.10",))
    assert (named.good, named.bad) == (("jax==0.9",), ("jax==0.10",))
    assert (named.like, named.current) == ("demo/convergence", True)


def test_a_verdict_keeps_the_nodes_of_its_job_and_gives_it_time(tmp_path: Path) -> None:
    path = nights(tmp_path, LOSS, good={"jax": "1"}, bad={"jax": "2"})
    (job,) = (night := read_night(path.parent)).jobs
    nodes = Resources(nodes=2, gpus_per_task=8)
    job = job.model_copy(
        update={"executor": "slurm", "resources": nodes, "duration_s": 1800.0, "measure": ("front_end",)}
    )
    write_night(path.parent, night.model_copy(update={"jobs": (job,)}))
    options = ask(path, "demo/loss")
    assert (options.executor, options.resources, options.timeout_s) == ("slurm", nodes, 5400.0)
    assert options.measure == ("front_end",)


def test_a_test_runs_with_the_resources_of_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, parse = min(os.sched_getaffinity(0)), "nightjar_ci.bisect.options.options.options_from_parameters"
    own = Resources(pinned_cpus=str(cpu))
    monkeypatch.setattr(parse, lambda read: replace(options_from_parameters(read), resources=own))
    is_bad = f"sys.exit(n >= 13 and os.sched_getaffinity(0) == {{{cpu}}})"
    found = answer("--rungs", rungs(tmp_path), "--deterministic", *program(tmp_path, is_bad))
    assert found["culprits"] == ["n013"]
    rung = Rung(kind="packages", name="jax 1")
    assert [_executor_of(rung, name, in_image=False) for name in ("slurm", "kubernetes")] == ["slurm", "local"]


def test_a_verdict_of_a_night_in_an_image_is_bisected_over_its_nights(tmp_path: Path) -> None:
    path = nights(tmp_path, LOSS, good={"jax": "1"}, bad={"jax": "2"}, image="localhost:5000/nightjar:models-cpu")
    options = ask(path, "demo/loss")
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
    assert done.returncode == 4
    assert "nothing regressed" in done.stdout


def test_a_verdict_without_a_difference_is_not_bisected(tmp_path: Path) -> None:
    path = nights(tmp_path, LOSS, good={"jax": "1"}, bad={"jax": "1"})
    done = bisect("--verdict", path, "demo/loss")
    assert done.returncode == 2
    assert "neither packages nor Python nor the commit differ" in done.stderr


def make_test_nights(
    tmp_path: Path,
    *,
    environment: str = "uv:locks/optax.txt",
    node: str | None = "t/test_a.py::test_clip",
    env: dict[str, str] | None = None,
) -> Path:
    folder = tmp_path / "nights"
    for number, (state, optax) in enumerate([("passed", "0.2.7"), ("failed", "0.2.8")]):
        night = folder / f"2026-11-0{number + 1}T0300-000{number}"
        case = Case.model_validate({"name": "t.test_a.test_clip", "state": state, "node": "t/test_a.py::test_clip"})
        result = record(0, values=[1.0], job="demo")
        packages = {"jax": "0.10.2", "optax": optax, "nightjar-models": "0.1"}
        update = {
            "tests": Suite(cases=(case,)),
            "environment": result.environment.model_copy(update={"packages": packages}),
        }
        job = make_job(
            "python", "-m", "pytest", "t", id="demo", cell="demo", replicate=None, kind="test", environment=environment
        )
        outcome = make_outcome(job, state="completed", exit_code=number, started_at="x")
        local = LocalPackage(name="nightjar-models", version="0.1", path="/w", editable=True, sha256=None, git=None)
        outcome = outcome.model_copy(update={"local_packages": (local,), "env": env or {}})
        make_night(night, [(outcome, result.model_copy(update=update))], night.name)
        policy = {"good_night": "2026-11-01T0300-0000", "node": node}
        series = "demo/t.test_a.test_clip" if node else "demo/tests_passed"
        red = Verdict(
            series=series, judge="tests", status="regressed", n=1, policy=policy, runs=("demo",), explanation=""
        )
        write_json(
            night / "verdicts.json", NightVerdicts(night=night.name, verdicts=(red,) if state == "failed" else ())
        )
    return night / "verdicts.json"


@pytest.mark.parametrize("node", ["t/test_a.py::test_clip", None])
def test_a_red_test_is_run_alone_in_the_packages_of_its_lock(tmp_path: Path, node: str | None) -> None:
    path = make_test_nights(tmp_path, node=node)
    series = find_worst(path)
    assert series is not None
    options = ask(path, series)
    assert options.command == ("python", "-m", "pytest", "t/test_a.py::test_clip")
    assert (options.good, options.bad) == (("optax==0.2.7",), ("optax==0.2.8",))
    assert (options.current, options.with_, options.any_date) == (False, ("jax==0.10.2",), True)


@pytest.mark.parametrize(
    ("environment", "current", "local"),
    [
        ("uv:jax==0.10.2,optax", True, ()),
        ("uv:locks/optax.txt", True, ()),
        ("project:.[test],jax", False, ("nightjar-models @ file:///w",)),
    ],
)
def test_a_red_measure_is_bisected_in_the_packages_of_its_job(
    tmp_path: Path, environment: str, current: bool, local: tuple[str, ...]
) -> None:
    path = make_test_nights(tmp_path, environment=environment, node=None)
    red = LOSS.model_copy(update={"status": "regressed", "policy": {"good_night": "2026-11-01T0300-0000"}})
    write_json(path, NightVerdicts(night=path.parent.name, verdicts=(red,)))
    options = ask(path, "demo/loss")
    assert (options.good, options.bad) == (("optax==0.2.7",), ("optax==0.2.8",))
    assert (options.current, options.with_) == (current, ("jax==0.10.2", *local))
    assert ask(path, "demo/loss", good=("optax==0.2.5",), bad=("optax==0.2.8",)).with_ == options.with_


@pytest.mark.parametrize(
    ("case", "deterministic"),
    [
        ({"message": "AttributeError: module 'jax' has no attribute 'a'", "runs": 2}, True),
        ({"message": "AttributeError: module 'jax' has no attribute 'a'", "runs": 1}, False),
        ({"message": "ImportError: cannot import name 'a'", "node": None}, True),
        ({"message": "AssertionError: 1 != 2", "runs": 2}, False),
    ],
)
def test_an_error_without_chance_is_tested_once(tmp_path: Path, case: dict[str, object], deterministic: bool) -> None:
    path = make_test_nights(tmp_path)
    edit_result(path.parent, lambda document: document["tests"]["cases"][0].update(case))
    assert ask(path).deterministic == deterministic


def test_a_command_that_ends_before_its_tests_only_collects_them(tmp_path: Path) -> None:
    path = make_test_nights(tmp_path, node=None)
    whole = {"name": WHOLE_COMMAND, "node": None}
    edit_result(path.parent, lambda document: document["tests"]["cases"][0].update(whole))
    assert ask(path, "demo/tests_passed").command == ("python", "-m", "pytest", "t", "--collect-only")


def test_a_test_that_failed_in_the_second_seed_alone_is_run_with_that_seed(tmp_path: Path) -> None:
    path = make_test_nights(tmp_path)
    night = read_night(path.parent)
    (job,) = night.jobs
    seeds = [job.model_copy(update={"job": f"demo-s{seed}", "replicate": seed}) for seed in range(2)]
    write_night(path.parent, night.model_copy(update={"jobs": tuple(seeds)}))
    text = (path.parent / "jobs" / "demo" / "result.json").read_text()
    for seed, state in zip(seeds, ("passed", "failed"), strict=True):
        document = json.loads(text) | {"job": seed.job, "seed": seed.replicate}
        document["tests"]["cases"][0]["state"] = state
        folder = path.parent / "jobs" / seed.job
        folder.mkdir()
        (folder / "result.json").write_text(json.dumps(document))
    assert ask(path).replicate == 1


def test_the_seed_that_alone_became_slow_is_run(tmp_path: Path) -> None:
    slow = LOSS.model_copy(update={"series": "demo/step_time", "judge": "history", "policy": {"of_worst": True}})
    path = nights(tmp_path, slow, good={"jax": "1"}, bad={"jax": "2"})
    (job,) = (night := read_night(path.parent)).jobs
    jobs = [job.model_copy(update={"job": f"demo-s{seed}", "replicate": seed}) for seed in range(3)]
    write_night(path.parent, night.model_copy(update={"jobs": tuple(jobs)}))
    for seed, seconds in enumerate((0.1, 0.3, 0.1)):
        (folder := path.parent / "jobs" / f"demo-s{seed}").mkdir(exist_ok=True)
        write_json(folder / "result.json", record(seed, step_times=(0.9, seconds, seconds), job=f"demo-s{seed}"))
    assert ask(path, "demo/step_time").replicate == 1


def test_a_file_that_cannot_be_imported_any_more_was_good_where_its_suite_was(tmp_path: Path) -> None:
    path = make_test_nights(tmp_path, node="t/test_a.py")
    (red,) = read_verdicts(path).verdicts
    red = red.model_copy(update={"series": "demo/t.test_a", "policy": {"node": "t/test_a.py"}})
    write_json(path, NightVerdicts(night=path.parent.name, verdicts=(red,)))
    suite = red.model_copy(update={"series": "demo/tests_passed", "status": "ok", "policy": {}})
    earlier = path.parent.parent / "2026-11-01T0300-0000"
    write_json(earlier / "verdicts.json", NightVerdicts(night=earlier.name, verdicts=(suite,)))
    options = ask(path, "demo/t.test_a")
    assert (options.good, options.bad) == (("optax==0.2.7",), ("optax==0.2.8",))
    assert (options.command, options.failure) == (("python", "-m", "pytest", "t/test_a.py"), ("import",))


def test_a_night_with_another_python_names_python_and_keeps_the_packages(tmp_path: Path) -> None:
    path = make_test_nights(tmp_path)
    edit_environment(path.parent, python="3.12.1")
    options = ask(path)
    assert (options.good, options.bad) == (
        ("optax==0.2.7", "python==3.11.7"),
        ("optax==0.2.8", "python==3.12.1"),
    )


def test_a_night_in_another_python_is_bisected_in_it(tmp_path: Path) -> None:
    path = make_test_nights(tmp_path)
    for night in path.parent.parent.iterdir():
        edit_environment(night, python="3.9.18")
    options = ask(path)
    assert (options.good, options.bad, options.python) == (("optax==0.2.7",), ("optax==0.2.8",), "3.9.18")
    assert ask(path, python="3.10").python == "3.10"


def test_a_project_test_that_no_night_saw_pass_is_looked_for_in_older_releases_of_jax(tmp_path: Path) -> None:
    path = make_test_nights(tmp_path, environment="project:.[test],jax")
    shutil.rmtree(path.parent.parent / "2026-11-01T0300-0000")
    options = ask(path)
    assert options.command == ("python", "-m", "pytest", "t/test_a.py::test_clip")
    assert (options.good, options.bad) == ((), ("jax==0.10.2",))
    assert (options.environment, options.any_date) == ("project:.[test],jax", False)


def test_a_file_that_cannot_be_imported_is_run_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_test_nights(tmp_path)
    text = path.read_text().replace("demo/t.test_a.test_clip", "demo/t.test_a")
    path.write_text(text.replace('"t/test_a.py::test_clip"', "null"))
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "test_a.py").touch()
    monkeypatch.chdir(tmp_path)
    assert ask(path, "demo/t.test_a").command == ("python", "-m", "pytest", "t/test_a.py")


def test_a_red_test_of_the_current_environment_keeps_its_folders(tmp_path: Path) -> None:
    path = make_test_nights(tmp_path, environment="current")
    options = ask(path)
    assert (options.current, options.with_) == (True, ())


def test_a_red_test_of_a_project_is_run_with_it_and_with_the_variables_of_its_job(tmp_path: Path) -> None:
    environment, env = "project:.[test],jax", {"BACKENDS": "jax", "CACHE": "{out}/cache"}
    path = make_test_nights(tmp_path, environment=environment, env=env)
    options = ask(path)
    variables = ("env", "BACKENDS=jax", "CACHE={out}/cache")
    assert options.command == (*variables, "python", "-m", "pytest", "t/test_a.py::test_clip")
    assert (options.current, options.with_) == (False, ("jax==0.10.2", "nightjar-models @ file:///w"))


@pytest.mark.parametrize(
    ("environment", "of_commits"),
    [("project:.[test],jax", "project:.[test],jax,jax==0.10.2"), ("uv:optax==0.2.8", "uv:optax==0.2.8")],
)
def test_a_commit_that_broke_a_test_is_looked_for_in_the_environment_of_its_job(
    tmp_path: Path, environment: str, of_commits: str
) -> None:
    path = make_test_nights(tmp_path, environment=environment)
    for night, sha in (("2026-11-01T0300-0000", "a"), ("2026-11-02T0300-0001", "b")):
        commit = {"packages": {"jax": "0.10.2", "optax": "0.2.8"}, "git": {"sha": sha * 40, "dirty": False}}
        edit_environment(path.parent.parent / night, **commit)
    options = ask(path)
    assert (options.repo, options.good, options.bad) == ((".",), ("a" * 40,), ("b" * 40,))
    named = ask(path, repo=(".",), good=("v1",), bad=("v2",))
    assert (options.environment, options.with_, named.environment) == (of_commits, (), of_commits)
