"""What a user of `nightjar-ci` sees: exit codes, messages, results on stdout."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nightjar_ci.cli import COMMANDS, import_command, main
from nightjar_ci.errors import InputError
from nightjar_ci.formats.night_folder import Night, read_night
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.night.matrix import expand, parse_seeds, read_matrix
from tests.called import call
from tests.ci.jobs import GOOD, python, write_matrix
from tests.places import ROOT


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def nightjar_ci(*arguments: object) -> subprocess.CompletedProcess[str]:
    return call(main, *arguments)


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "nightjar_ci", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in imported
    heavy = {"backports", "jinja2", "numpy", "plotly", "polars", "pydantic", "rich", "sqlalchemy"}
    assert imported & heavy == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_of_a_command_is_the_first_line_of_its_docstring(name: str) -> None:
    module = import_command(name)
    told = module.app.info.help if hasattr(module, "app") else module.command.__doc__
    assert (told or "").strip().splitlines()[0] == COMMANDS[name]


def test_a_good_night_prints_its_folder_and_ends_with_zero(tmp_path: Path, state: Path) -> None:
    path = write_matrix(tmp_path / "m.toml", {"a": python(GOOD)})
    done = nightjar_ci("run", path)
    assert done.returncode == 0, done.stderr
    assert read_night(Path(done.stdout.strip())).jobs[0].completed
    assert "[1/1] a: completed" in done.stderr
    listed = nightjar_ci("store", "--json")
    assert [one["completed"] for one in json.loads(listed.stdout)] == [1]
    history = nightjar_ci("store", "a", "loss")
    assert history.stdout.splitlines()[0].split()[:2] == ["night", "started_at"]
    assert "4.8" in history.stdout.splitlines()[1]


def test_a_night_with_a_failed_job_ends_with_three(tmp_path: Path, state: Path) -> None:
    path = write_matrix(tmp_path / "m.toml", {"a": python("import sys; sys.exit('why')"), "b": python(GOOD)})
    done = nightjar_ci("run", path, "--json")
    assert done.returncode == 3
    assert [one.state for one in Night.model_validate_json(done.stdout).jobs] == ["failed", "completed"]
    assert "why" in done.stderr


def test_a_wrong_matrix_ends_with_two_and_a_hint(tmp_path: Path, state: Path) -> None:
    path = write_matrix(tmp_path / "m.toml", {"a": ("true",)})
    path.write_text(path.read_text().replace("timeout_s", "timeout"))
    done = nightjar_ci("run", path)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert lines[0].startswith(f"error: {path}: defaults: unknown key 'timeout': expected one of ")
    assert lines[1] == "Hint: did you mean 'timeout_s'?"
    assert not state.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--jobs", "z*"], "no job has an id like 'z*'"),
        (["--seeds", "x"], "--seeds: 'x' is not a list of seeds"),
        (["--executor", "slrum"], "unknown executor 'slrum': expected one of local, docker, slurm, kubernetes"),
        (["--environment", "conda:x"], "unknown environment 'conda:x'"),
        (["--resume"], "no unfinished night of the matrix 'small'"),
        (["--no-such-option"], "No such option"),
    ],
)
def test_a_wrong_option_ends_with_two(tmp_path: Path, state: Path, options: list[str], message: str) -> None:
    path = write_matrix(tmp_path / "m.toml", {"a": ("true",)})
    done = nightjar_ci("run", path, *options)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_dry_run_prints_commands_and_changes_nothing(tmp_path: Path, state: Path) -> None:
    path = write_matrix(tmp_path / "m.toml", {"a": ("echo", "{out}", "{seed}")})
    done = nightjar_ci("run", path, "--dry-run")
    environment, *rest = done.stdout.splitlines()
    assert environment.startswith("current is /")
    assert (done.returncode, rest[-1]) == (0, "a: echo OUT 0")
    assert not state.exists()


@pytest.mark.parametrize("path", sorted((ROOT / "ci" / "matrix").glob("*.toml")), ids=lambda path: path.stem)
def test_a_dry_run_of_each_of_our_matrices_names_all_jobs(path: Path) -> None:
    done = nightjar_ci("run", path, "--dry-run")
    assert done.returncode == 0, done.stderr
    jobs = expand(read_matrix(path))
    assert all(f"{job.id}: " in done.stdout for job in jobs)
    assert all(job.timeout_s <= 3600 for job in jobs)


def test_debug_prints_the_traceback_wherever_it_stands(tmp_path: Path) -> None:
    for arguments in (("--debug", "run", tmp_path / "no.toml"), ("run", tmp_path / "no.toml", "--debug")):
        done = nightjar_ci(*arguments)
        assert "Traceback" in done.stderr
        assert "no.toml: no such file" in done.stderr
    assert "Traceback" not in nightjar_ci("run", tmp_path / "no.toml").stderr


def test_an_unforeseen_error_ends_with_three(monkeypatch: pytest.MonkeyPatch, state: Path) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", "/proc/none")
    done = nightjar_ci("store")
    assert done.returncode == 3
    assert done.stderr.startswith("error: ")


def run_shell(script: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", script, "bash", sys.executable, "-m", "nightjar_ci"]
    environ = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environ)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ('"$@" show run > /dev/full', "No space left on device.\nHint: the disk is full"),
        ('mkdir gone && cd gone && rmdir ../gone && "$@" run m.toml', "m.toml: no such file"),
        ('"$@" store', "File name too long"),
        ('mkdir "$(printf "a\\xff")" && cd a* && "$@" run m.toml', "no such file"),
    ],
)
def test_a_fault_of_the_machine_is_not_called_a_bug(tmp_path: Path, script: str, says: str) -> None:
    done = run_shell(script, tmp_path, NIGHTJAR_STATE_DIR=str(tmp_path / ("s" * 300)))
    assert done.returncode in (2, 3)
    assert says in done.stderr
    assert "bug" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_page_of_nothing_is_not_written(tmp_path: Path, state: Path) -> None:
    done = run_shell('"$@" site --nights nope', tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--nights nope: no such folder." in done.stderr
    assert not (tmp_path / "site").exists()


def test_the_jobs_of_a_matrix_are_printed_as_json(tmp_path: Path) -> None:
    path = write_matrix(tmp_path / "m.toml", {"a": ("true",), "bb": ("true",)})
    plan = json.loads(nightjar_ci("run", path, "--dry-run", "--json").stdout)
    assert [(job["id"], job["executor"], job["timeout_s"]) for job in plan] == [("a", "local", 30), ("bb", "local", 30)]


def test_the_schema_of_a_format_is_that_of_its_model() -> None:
    assert json.loads(nightjar_ci("show", "run").stdout) == RunRecord.model_json_schema(by_alias=True)
    done = nightjar_ci("show", "rum")
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("name", ["run", "matrix", "night", "verdicts"])
def test_every_format_has_a_schema(name: str) -> None:
    assert "schema" in json.loads(nightjar_ci("show", name).stdout)["properties"]


@pytest.mark.parametrize("text", ["", "0:", ":3", "1-2", "-1", "0:1:2"])
def test_seeds_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a list of seeds"):
        parse_seeds(text)
