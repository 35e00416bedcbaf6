"""Workflows: every step's command is a session or a command of Nightjar that takes its options; rehearsed dry."""

import dataclasses
import json
import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nox.registry
import pytest
import typer.main
import yaml
from packaging.markers import Marker
from packaging.version import Version

import noxfile
from nightjar_ci.cli import COMMANDS, make_app
from nightjar_ci.formats.job import Job
from nightjar_ci.night.matrix import expand, move_job, read_matrix, select_jobs
from tests.rehearsal.runner import Runner
from tests.rehearsal.stand_ins import StandIns
from tests.rehearsal.workflow import read_workflow
from tests.stand_ins import write_programs

ROOT = noxfile.ROOT
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FOR_OTHERS = "nightjar"  # runs in other repositories: test_action.py runs it in one
GITHUB = {
    "repository": "owner/nightjar",
    "server_url": "https://github.example",
    "run_id": "7",
    "run_attempt": "1",
    "actor": "somebody",
    "token": "none",
    "ref": "refs/heads/main",
    "ref_name": "main",
    "event_name": "push",
}
HOSTED = {"os": "Linux", "environment": "github-hosted"}
OURS = {"workflow_repository": "owner/nightjar", "workflow_sha": "0" * 40}
CONTEXTS: Mapping[str, Any] = {"github": GITHUB, "job": OURS, "vars": {}, "secrets": {}, "runner": HOSTED}
INPUTS = {"package": "jax", "good": "0.10.1", "bad": "0.10.2", "metric": "step_time", "command": "true"}


class Rehearsed:
    """A shell that runs nothing: it notes the words of each command, with variables filled in."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def __call__(self, command: str, env: Mapping[str, str]) -> int:
        text = re.sub(r".*\$\((python3 .*?)\).*", r"\1", command.strip(), flags=re.DOTALL)
        text = re.sub(r"\$(\w+)", lambda name: env.get(name[1], "VALUE") or "VALUE", text)
        self.commands.append(shlex.split(text))
        return 0


def rehearse(name: str, folder: Path, failing: str | None = None, **variables: str) -> tuple[Rehearsed, Runner]:
    """All steps of a workflow in order, with a shell that runs nothing; a command that holds `failing` fails."""
    shell, stand_ins = Rehearsed(), StandIns(folder, folder / "checkout")
    for path in (stand_ins.checkout, stand_ins.artifacts):
        path.mkdir()
    stand_ins.act = lambda uses, given: uses if uses in stand_ins.names() else ""  # type: ignore[method-assign]

    def run(command: str, env: Mapping[str, str]) -> int:
        return shell(command, env) or int(failing is not None and failing in command)

    runner = Runner(ROOT, stand_ins, {**CONTEXTS, "vars": variables}, run)
    result = runner.run(read_workflow(ROOT / ".github" / "workflows" / name, ROOT), INPUTS)
    assert result == ("success" if failing is None else "failure")
    return shell, runner


def parse(words: list[str]) -> str:
    """The command of nightjar-ci that the words name; their options are parsed, and nothing is run."""
    context: Any = typer.main.get_command(make_app(words[0])).make_context("nightjar-ci", list(words))
    while hasattr(context.command, "resolve_command"):
        name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)
    return str(context.command_path)


SESSIONS = set(nox.registry.get())
SUDO = ["sudo", "--preserve-env=CI"]


@pytest.mark.parametrize("path", [path for path in WORKFLOWS if path.stem != FOR_OTHERS], ids=lambda path: path.stem)
def test_every_step_runs_a_session_or_a_command_that_takes_its_options(path: Path, tmp_path: Path) -> None:
    shell, runner = rehearse(path.name, tmp_path)
    if path.stem == "docs":
        assert shell.commands  # on a push: what is published
    for words in shell.commands:
        if ".ci/run" in words:
            assert (ROOT / ".ci" / "run").is_file()
            continue
        if "login" in words or "bubblewrap" in words or words[0] == "bwrap":  # in our actions
            continue
        if words[:2] == SUDO or words[0] == "timeout":
            words = words[2:]
        assert words[:2] == ["python3", "noxfile.py"], f"{path.name}: {words}: workflows call nox"
        if words[2:] == ["--list"]:
            continue
        session = words[words.index("-s") + 1]
        assert session in SESSIONS, f"{path.name}: no session {session}"
        if session == "nightjar_ci":
            rest = words[words.index("--") + 1 :]
            assert rest[0] in COMMANDS
            assert parse(rest).startswith(f"nightjar-ci {rest[0]}")
    assert all(one.outcome != "failure" for one in runner.done), runner.done


def test_the_nightly_goes_from_the_build_of_all_images_to_the_page_in_order(tmp_path: Path) -> None:
    shell, runner = rehearse("nightly.yml", tmp_path)
    others = ("meshes/night", "aot/night", "ecosystem/night", "upstream/night", "canaries/night", "trainers/night")
    named = [one.step for one in runner.done if one.outcome == "success" and one.job not in others]
    wanted = ["Bump", "Build", "Test", "Publish", "Run", "Confirm", "Gate", "Report"]
    wanted += ["Documentation", "Status page", "Deploy"]
    assert [name for name in named if name in wanted] == wanted
    here = {"pins/pins", "images", "cpu/night", "page/pages"}
    assert {one.job for one in runner.done} == {*here, *others}  # other machines are not switched on
    assert next(one for one in runner.done if one.step == "Bisect").outcome == "skipped"
    of_aot = ["ci/matrix/nightly-aot.toml" in words for words in shell.commands if "run" in words]
    assert of_aot == [False, False, True, *[False] * 4]
    steps = [words[words.index("images") + 1 :] for words in shell.commands if "images" in words]
    assert [words[0] for words in steps if "--all" in words] == ["build", "test", "push"]


def test_another_machine_is_switched_on_by_naming_its_matrix(tmp_path: Path) -> None:
    variables = {"NIGHTJAR_GPU_MATRIX": "ci/matrix/gpu.toml", "NIGHTJAR_FLAVORS": '["cpu", "cuda12"]'}
    variables |= dict.fromkeys(("NIGHTJAR_MESHES", "NIGHTJAR_AOT_MATRIX", "NIGHTJAR_ECOSYSTEM"), "off")
    variables["NIGHTJAR_ARCHITECTURES"] = '["amd64", "arm64"]'
    shell, runner = rehearse("nightly.yml", tmp_path, **variables)
    assert {one.job for one in runner.done} == {"pins/pins", "images", "cpu/night", "gpu/night", "page/pages"}
    assert [words[-1] for words in shell.commands if "build" in words] == ["cpu", "cpu", "cuda12", "cuda12"]
    pushes = [" ".join(words) for words in shell.commands if "push" in words]
    assert ["--platform=linux/amd64 --platform=linux/arm64" in push for push in pushes] == [True] * 4
    assert ["ci/matrix/gpu.toml" in words for words in shell.commands if "run" in words] == [False, True]


def test_images_and_every_night_without_an_image_take_the_pins_that_were_bumped_tonight(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    lock = checkout / "docker" / "locks" / "aot.txt"
    lock.parent.mkdir(parents=True)
    stand_ins, pins = StandIns(tmp_path, checkout), dict[str, str]()
    stand_ins.artifacts.mkdir()
    act = stand_ins.act

    def check_out_or_act(uses: str, given: Mapping[str, Any]) -> str:
        if uses == "actions/checkout":  # each job begins with what is committed
            lock.write_text("committed")
        return act(uses, given) if given.get("name") == "pins" else ""

    def note_pins(command: str, env: Mapping[str, str]) -> int:
        if " images bump" in command:
            lock.write_text("of tonight")
        elif " images build" in command or (" -- run " in command and not env["IMAGE"]):
            pins[env.get("MATRIX") or env["FLAVOR"]] = lock.read_text()
        return 0

    stand_ins.act = check_out_or_act  # type: ignore[method-assign]
    contexts = {**CONTEXTS, "vars": {"NIGHTJAR_SLURM_MATRIX": "slurm.toml"}}
    Runner(ROOT, stand_ins, contexts, note_pins).run(read_workflow(ROOT / ".github/workflows/nightly.yml", ROOT))
    assert pins.keys() >= {"cpu", "slurm.toml", "ci/matrix/nightly-aot.toml", "ci/matrix/nightly-ecosystem.toml"}
    assert set(pins.values()) == {"of tonight"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    env: Mapping[str, str]
    jobs: tuple[Job, ...]


ANY_MATRIX = "ci/matrix/multinode-gpu.toml"


def list_runs(folder: Path, *, others: bool = False, restored: list[Mapping[str, Any]] | None = None) -> list[Asked]:
    """Every `run` of the workflows with a schedule, the cells of our own matrices all switched on."""
    asked = []
    kept = restored if restored is not None else []

    def act(uses: str, given: Mapping[str, Any]) -> str:
        if uses == "actions/cache/restore":
            kept.append(given)
        return uses

    def note(command: str, env: Mapping[str, str]) -> int:
        if " -- run " in command:
            jobs = select_jobs(expand(read_matrix(ROOT / env["MATRIX"])), pattern=env["JOBS"])
            asked.append(Asked(env=env, jobs=tuple(move_job(one, environment=env["ENVIRONMENT"]) for one in jobs)))
        return 0

    for path in WORKFLOWS:
        if "schedule" in path.read_text():
            stand_ins = StandIns(folder, folder)
            stand_ins.artifacts.mkdir(exist_ok=True)
            stand_ins.act = act  # type: ignore[method-assign]
            switched_on = dict.fromkeys(("NIGHTJAR_GPU_MATRIX", "NIGHTJAR_SLURM_MATRIX"), ANY_MATRIX) if others else {}
            gpus = {"NIGHTJAR_ECOSYSTEM_GPU": "on", "NIGHTJAR_GPU_MATRIX": "ci/matrix/nightly-gpu.toml"}
            contexts = {**CONTEXTS, "vars": {**gpus, **switched_on}}
            Runner(ROOT, stand_ins, contexts, note).run(read_workflow(path, ROOT))
    return asked


def test_every_cell_of_a_nightly_or_weekly_matrix_is_run_once_by_a_workflow_with_a_schedule(tmp_path: Path) -> None:
    files = [path for kind in ("nightly", "weekly") for path in sorted((ROOT / "ci" / "matrix").glob(f"{kind}-*.toml"))]
    files.append(ROOT / "ci" / "matrix" / "canaries.toml")
    wanted = {(str(path.relative_to(ROOT)), job.id) for path in files for job in expand(read_matrix(path))}
    found = [(one.env["MATRIX"], job.id) for one in list_runs(tmp_path) for job in one.jobs]
    assert len(found) == len(set(found))
    assert set(found) == wanted


def test_no_kind_of_machine_restores_the_nights_of_another(tmp_path: Path) -> None:
    restored: list[Mapping[str, Any]] = []
    list_runs(tmp_path, others=True, restored=restored)
    states = {str(one["key"]): str(one["restore-keys"]) for one in restored}
    assert len(states) >= 9
    for key, prefix in states.items():
        assert [other for other in states if other.startswith(prefix)] == [key]


def test_a_cell_with_a_lock_of_its_own_keeps_it_and_has_the_python_of_the_images(tmp_path: Path) -> None:
    asked = [one for one in list_runs(tmp_path) if not one.env["IMAGE"]]
    assert {job.environment.partition(":")[0] for one in asked for job in one.jobs} == {"uv"}
    called = (one for path in WORKFLOWS for one in read_workflow(path, ROOT).jobs if "matrix" in one.inputs)
    assert {one.inputs["python"] for one in called if "python" in one.inputs} == {read_default_python()}


def test_programs_for_absent_gpus_are_compiled_by_the_newest_jax_of_their_lock() -> None:
    lock = (ROOT / "docker" / "locks" / "aot.txt").read_text()
    found = re.findall(r"^(jax(?:lib|-cuda12-\w+)?)==(\S+)(?: ; ([^\\]+))? \\$", lock, re.MULTILINE)
    here = {"python_full_version": f"{read_default_python()}.0"}
    mine = [(name, version) for name, version, marker in found if not marker or Marker(marker).evaluate(here)]
    newest = max((version for _, version, _ in found), key=Version)
    assert sorted(mine) == [(name, newest) for name in ("jax", "jax-cuda12-pjrt", "jax-cuda12-plugin", "jaxlib")]


def read_default_python() -> str:
    return str(json.loads((ROOT / "docker" / "versions.json").read_text())["variable"]["DEFAULT_PYTHON"]["default"])


def run_failing(folder: Path, failing: str) -> tuple[Rehearsed, dict[str, str]]:
    """The nightly with GPUs where the command that holds a text fails: commands, and the outcome of steps and jobs."""
    shell, runner = rehearse("nightly.yml", folder, failing, NIGHTJAR_GPU_MATRIX="gpu.toml")
    return shell, {f"{one.job}: {one.step}": one.outcome for one in runner.done}


@pytest.mark.parametrize("failing", ["images build", "images test"])
def test_nights_take_the_images_before_those_that_fail(tmp_path: Path, failing: str) -> None:
    _, done = run_failing(tmp_path, failing)
    assert done["images: Publish"] == "success"
    assert (done["cpu/night: Run"], done["gpu/night: Run"]) == ("success", "success")


def test_an_image_that_cannot_be_pulled_is_all_that_its_night_says(tmp_path: Path) -> None:
    _, done = run_failing(tmp_path, "images pull")
    after = ["Pull", "Run", "Confirm", "Gate", "Report", "Bisect", "Forget old nights"]
    assert [done[f"cpu/night: {step}"] for step in after] == ["failure", *["skipped"] * 6]
    assert done["aot/night: Gate"] == done["page/pages: Deploy"] == "success"


def test_pins_that_do_not_resolve_leave_the_images_and_the_nights_in_them_as_they_were(tmp_path: Path) -> None:
    shell, done = run_failing(tmp_path, "images bump")
    assert not [name for name in done if name.startswith(("images", "aot"))]
    assert done["cpu/night: Run"] == done["page/pages: Deploy"] == "success"
    assert not any({"build", "push"} & set(words) for words in shell.commands)


@pytest.mark.parametrize("name", ["nightly.yml", "weekly.yml", "docs.yml"])
def test_every_page_has_the_support_matrix_of_the_repository(tmp_path: Path, name: str) -> None:
    shell, _ = rehearse(name, tmp_path)
    (page,) = [words for words in shell.commands if "site" in words]
    assert page[page.index("--images") + 1] == "ghcr.io/owner/nightjar"


def test_a_red_gate_is_bisected_and_reported_and_the_page_is_made_all_the_same(tmp_path: Path) -> None:
    _, runner = rehearse("nightly.yml", tmp_path, " -- gate ")
    done = {one.step: one.outcome for one in runner.done}
    assert (done["Gate"], done["Report"], done["Bisect"], done["Status page"]) == ("failure", *["success"] * 3)


def read_steps(path: Path) -> dict[str, list[dict[str, Any]]]:
    return {name: job.get("steps", []) for name, job in yaml.safe_load(path.read_text())["jobs"].items()}


def test_a_step_fails_with_its_command_but_where_a_night_goes_on_without(tmp_path: Path) -> None:
    write_programs(tmp_path, dict.fromkeys(("python3", "sudo"), "#!/bin/sh\nexit 3\n"))
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "GITHUB_ENV": str(tmp_path / "env")}
    steps = [step for path in WORKFLOWS for steps in read_steps(path).values() for step in steps if "run" in step]
    assert len(steps) > 20
    succeeded = [
        step["name"]
        for step in steps
        if subprocess.run(["bash", "-e", "-c", step["run"]], env=environ, cwd=tmp_path, check=False).returncode == 0
    ]
    assert succeeded == ["Packages of the day"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_may_take_hours_ends_early_enough_to_be_judged_and_kept(path: Path) -> None:
    for name, job in yaml.safe_load(path.read_text())["jobs"].items():
        if "steps" in job:
            assert job["timeout-minutes"] <= 360, f"{name}: GitHub's own runners end a job then, its evidence unsaved"
            limits = sum(step.get("timeout-minutes", 0) for step in job["steps"])
            if (path.stem, name) == (FOR_OTHERS, "night"):  # the action ends it
                limits = int(yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]["minutes"]["default"])
            assert limits or job["timeout-minutes"] <= 90, f"{name}: a step that takes all of its time loses the rest"
            assert limits <= job["timeout-minutes"] - 15


def test_every_action_has_a_stand_in_or_belongs_to_the_release() -> None:
    known = StandIns(Path(), Path()).names() | {"actions/attest-build-provenance"}
    used = {
        found for path in WORKFLOWS for found in re.findall(r"^ .*uses: ([\w./-]+)@", path.read_text(), re.MULTILINE)
    }
    assert used <= known


def test_what_publishes_restores_no_packages_that_a_night_may_have_written() -> None:
    trusted = 0
    for path in WORKFLOWS:
        document = yaml.safe_load(path.read_text())
        for job in document["jobs"].values():
            permissions = {**document.get("permissions", {}), **job.get("permissions", {})}
            if "write" not in permissions.values() and path.name not in ("pins.yml", "docs.yml"):  # published later
                continue
            for step in job.get("steps", ()):
                if step.get("uses") == "./.github/actions/setup":
                    trusted += 1
                    assert step.get("with") == {"cache": "false"}, path.name
    assert trusted == 5
