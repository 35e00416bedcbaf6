"""What a night makes of jobs that crash, hang, write garbage or fill the disk: the others go on, nothing is lost."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nightjar_ci.cli import main
from nightjar_ci.environments.prepare import Environments
from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.formats.night_folder import (
    find_programs,
    is_night_id,
    job_folder,
    new_night_id,
    programs_folder,
    read_night,
    write_night,
)
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.night.matrix import expand, read_matrix
from nightjar_ci.night.run import run_night
from nightjar_ci.night.run_job import prepare, run_job
from nightjar_ci.settings import Settings
from nightjar_ci.store import Store
from tests.called import call
from tests.ci.jobs import GOOD, RESULT, make_job, python, wait_for, write_matrix
from tests.ci.nights import leave_capture


def leaving(text: str) -> tuple[str, ...]:
    program = f"import os, pathlib; pathlib.Path(os.environ['NIGHTJAR_OUT'], 'result.json').write_text({text!r})"
    return python(program)


BAD_LUCK = {
    "crash": python("import sys; sys.exit('this is why')"),
    "killed": python("import os; os.kill(os.getpid(), 9)"),
    "hang": ("sleep", "60"),
    "absent": ("no-such-command",),
    "silent": python(""),
    "garbage": leaving("\x00 garbage"),
    "truncated": leaving(RESULT[:200]),
    "newer": leaving(RESULT.replace("nightjar.run/1", "nightjar.run/2")),
    "typo": leaving(RESULT.replace('"samples"', '"sample"')),
    "good": python(GOOD),
}


def test_every_kind_of_bad_luck_has_its_state_and_message_and_the_other_jobs_go_on(
    tmp_path: Path, store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    matrix = read_matrix(write_matrix(tmp_path / "m.toml", BAD_LUCK, timeout_s=2))
    folder = tmp_path / "night"
    night = run_night(matrix, folder, store=store)
    states = {outcome.job: outcome.state for outcome in night.jobs}
    assert states == {
        "crash": "failed",
        "killed": "killed",
        "hang": "timeout",
        "absent": "not_started",
        "silent": "invalid",
        "garbage": "invalid",
        "truncated": "invalid",
        "newer": "invalid",
        "typo": "invalid",
        "good": "completed",
    }
    messages = {outcome.job: outcome.message or "" for outcome in night.jobs}
    assert messages["good"] == ""
    for name, part in {
        "crash": "this is why",
        "killed": "killed by SIGKILL",
        "hang": "timeout_s = 2",
        "silent": "result.json: no such file",
        "garbage": "not valid JSON",
        "truncated": "the file is incomplete",
        "newer": "this version reads 'nightjar.run/1'",
        "typo": "did you mean 'samples'?",
    }.items():
        assert part in messages[name]
        assert messages[name].startswith(f"{name}: ")
        assert "Hint: " in messages[name]
    assert read_night(folder) == night
    assert night.finished_at is not None
    assert [outcome.job for outcome, result in read_night_results(folder) if result is not None] == ["good"]
    kept = json.loads((job_folder(folder, "crash") / "outcome.json").read_text())
    assert Outcome.model_validate(kept) == night.outcome_of("crash")
    assert (store.nights()[0].completed, store.nights()[0].runs) == (1, 10)
    assert len(store.history("good", "loss")) == 1
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == f"night {night.id}: 10 jobs of small"
    assert "[1/10] crash" in lines
    assert any(line.startswith("[10/10] good: completed in ") for line in lines)


@pytest.mark.slow
def test_a_profile_is_valid_where_it_left_its_summary(tmp_path: Path) -> None:
    def state(text: str | None) -> str:
        program = "import os, pathlib; out = pathlib.Path(os.environ['NIGHTJAR_OUT'], 'capture'); out.mkdir();"
        program += "" if text is None else f"(out / 'profile.json').write_text({text!r})"
        return run_job(make_job(*python(program), kind="profile"), tmp_path / "job").state

    leave_capture(tmp_path / "made", "demo")
    whole = (job_folder(tmp_path / "made", "demo") / "capture" / "profile.json").read_text()
    assert state(whole) == "completed"
    assert [
        state(bad)
        for bad in (None, '{"schema": "nightjar.profile/1"}', '{"schema": "nightjar.profile/2"}', '{"schema":', "[]")
    ] == ["invalid"] * 5


def test_a_result_of_another_seed_is_no_replicate(tmp_path: Path) -> None:
    ended = run_job(make_job(*python(GOOD), id="demo-s1", replicate=1), tmp_path / "job")
    assert ended.state == "invalid"
    assert "seed is 0, expected 1" in (ended.message or "")


def test_a_night_of_which_only_some_jobs_were_resumed_stays_unfinished(tmp_path: Path) -> None:
    path = write_matrix(tmp_path / "matrix.toml", {"a": python("raise SystemExit(1)"), "b": python("import time")})
    matrix = read_matrix(path)
    jobs = expand(matrix)
    run_night(matrix, tmp_path / "night", jobs=jobs[:1])
    night = read_night(tmp_path / "night")
    write_night(tmp_path / "night", night.model_copy(update={"finished_at": None, "planned": ("a", "b")}))
    assert run_night(matrix, tmp_path / "night", jobs=jobs[:1], resume=True).finished_at is None
    renamed = read_matrix(write_matrix(path, {"a": python("raise SystemExit(1)"), "c": python("import time")}))
    resumed = run_night(renamed, tmp_path / "night", resume=True)
    assert (resumed.finished_at is None, resumed.planned) == (False, ("a", "c"))


def test_a_resumed_night_keeps_its_options_and_takes_no_others(tmp_path: Path, settings: Settings) -> None:
    path = write_matrix(tmp_path / "m.toml", {"a": python(GOOD), "b": ("false",)})
    environ = {**os.environ, "NIGHTJAR_STATE_DIR": str(settings.state_dir)}
    folder = Path(call(main, "run", path, "--jobs", "a", environ=environ).stdout.strip())
    write_night(folder, read_night(folder).model_copy(update={"finished_at": None, "jobs": ()}))
    other = call(main, "run", path, "--resume", "--environment", "uv:jax", environ=environ)
    assert (other.returncode, "was begun with other options: jobs = 'a'." in other.stderr) == (2, True), other.stderr
    assert call(main, "run", path, "--resume", environ=environ).returncode == 0
    assert [outcome.job for outcome in read_night(folder).jobs] == ["a"]


def test_a_night_of_some_jobs_names_the_cells_that_it_leaves_out(tmp_path: Path, store: Store) -> None:
    matrix = read_matrix(write_matrix(tmp_path / "m.toml", {name: python(GOOD) for name in ("one", "two")}))
    first, second = expand(matrix)
    night = run_night(matrix, tmp_path / "night", jobs=[first], store=store)
    assert night.left_out == (second.cell,)
    assert run_night(matrix, tmp_path / "whole", store=store).left_out == ()


def test_a_link_in_place_of_the_shared_programs_is_not_followed(tmp_path: Path) -> None:
    out = tmp_path / "night" / "jobs" / "a"
    out.mkdir(parents=True)
    programs_folder(tmp_path / "night").symlink_to(tmp_path)
    assert find_programs(out) is None
    programs_folder(tmp_path / "night").unlink()
    programs_folder(tmp_path / "night").mkdir()
    assert find_programs(out) == programs_folder(tmp_path / "night")


def test_jobs_share_compiled_programs_while_their_night_runs_where_the_matrix_says_so(tmp_path: Path) -> None:
    keep = "import os, pathlib; (pathlib.Path(os.environ['NIGHTJAR_PROGRAMS']) / 'program').touch(exist_ok=False)"
    find = "import os, pathlib; (pathlib.Path(os.environ['NIGHTJAR_PROGRAMS']) / 'program').read_bytes()"
    path = write_matrix(tmp_path / "m.toml", {"first": python(f"{keep}; {GOOD}"), "second": python(f"{find}; {GOOD}")})
    matrix = read_matrix(path)
    alone = run_night(matrix, tmp_path / "alone")
    assert [outcome.completed for outcome in alone.jobs] == [False, False]
    sharing = matrix.model_copy(update={"defaults": matrix.defaults.model_copy(update={"share_programs": True})})
    night = run_night(sharing, tmp_path / "sharing")
    assert [outcome.completed for outcome in night.jobs] == [True, True]
    assert not programs_folder(tmp_path / "sharing").exists()
    assert run_job(expand(sharing)[0], tmp_path / "rerun" / "jobs" / "first").state == "failed"  # as a pair runs it


def test_an_earlier_result_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    assert run_job(make_job(*python(GOOD)), tmp_path / "job").completed
    assert run_job(make_job(*python("")), tmp_path / "job").state == "invalid"


@pytest.mark.parametrize("code", [0, 3])
def test_a_training_that_diverged_failed_and_its_result_is_kept(tmp_path: Path, store: Store, code: int) -> None:
    text = RESULT.replace('"completed"', '"diverged"').replace("4.8", '"NaN"')
    command = python(
        f"import os, sys; open(os.environ['NIGHTJAR_OUT'] + '/result.json', 'w').write({text!r}); sys.exit({code})"
    )
    matrix = read_matrix(write_matrix(tmp_path / "m.toml", {"demo": command}))
    night = run_night(matrix, tmp_path / "night", store=store)
    assert night.jobs[0].state == "failed"
    assert code or "its training diverged" in (night.jobs[0].message or "")
    ((_, result),) = read_night_results(tmp_path / "night")
    assert result is not None
    assert result.status == "diverged"
    assert store.history("demo", "loss") == []


FILL = "import os; file = open(os.environ['NIGHTJAR_OUT'] + '/big', 'wb', 0)\nwhile True: file.write(b'x' * 65536)"


def test_a_job_that_meets_a_file_size_limit_is_told_so(tmp_path: Path) -> None:
    limited = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
    limited += "resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))\n"
    outcome = run_job(make_job(*python(limited + FILL)), tmp_path / "job")
    assert outcome.state == "failed"
    assert "File too large" in (outcome.message or "")
    assert "Hint: the disk is full, or a quota or file-size limit" in (outcome.message or "")


BROKEN_LOCKS = {
    "marker": (b"jax==0.10.2 ; sys_platform !=\n", "bad.txt: Expected a marker variable or quoted string"),
    "variable": (b"jax==0.10.2 ; no_such_variable == '1'\n", "bad.txt: Expected a marker variable or quoted string"),
    "binary": (b"\xff\xfe\x00", "bad.txt: 'utf-8' codec can't decode"),
    "loop": (b"-r bad.txt\n", "cannot be read: it includes itself"),
    "home": (b"~nobody-of-that-name/package\n", "is not a path: Could not determine home directory"),
    "absent": (b"no-such-package-at-all==1\n", "the environment cannot be made"),
}


@pytest.mark.parametrize(("lock", "said"), BROKEN_LOCKS.values(), ids=BROKEN_LOCKS)
def test_a_lock_that_cannot_be_installed_stops_only_its_job(
    tmp_path: Path, settings: Settings, lock: bytes, said: str
) -> None:
    (tmp_path / "bad.txt").write_bytes(lock)
    path = write_matrix(tmp_path / "m.toml", {"first": python(GOOD), "second": python(GOOD), "third": python(GOOD)})
    place = f'name = "second"\nenvironment = "uv:{tmp_path / "bad.txt"}"'
    path.write_text(path.read_text().replace('name = "second"', place))
    night = run_night(read_matrix(path), tmp_path / "night", environments=Environments(settings))
    states = {outcome.job: outcome.state for outcome in night.jobs}
    assert said in (night.jobs[1].message or "")
    assert states == {"first": "completed", "second": "not_started", "third": "completed"}


def test_a_nul_in_a_name_stops_only_its_job(tmp_path: Path, settings: Settings) -> None:
    changes: dict[str, dict[str, Any]] = {
        "lock": {"environment": "uv:bad\0.txt"},
        "image": {"environment": "image:a\0b", "executor": "docker"},
        "command": {"command": ("true", "\0")},
        "variable": {"env": {"A": "\0"}},
        "good": {"command": python(GOOD)},
    }
    jobs = [make_job("true", **{"id": name, "cell": name, "replicate": None} | one) for name, one in changes.items()]
    matrix = read_matrix(write_matrix(tmp_path / "m.toml", {"x": ("true",)}))
    for workers in (1, 2):
        folder = tmp_path / f"night{workers}"
        night = run_night(matrix, folder, jobs=jobs, environments=Environments(settings), workers=workers)
        states = {outcome.job: outcome.state for outcome in night.jobs}
        assert states == dict.fromkeys(changes, "not_started") | {"good": "completed"}
        assert all("embedded null" in (job.message or "") for job in night.jobs if job.job not in ("good", "image"))


def test_what_a_job_wrote_for_its_adapter_ends_no_night_whatever_it_is(tmp_path: Path) -> None:
    path = write_matrix(
        tmp_path / "m.toml", {"odd": python(r"""print('{"loss": 1, "\\ud800": 2}')"""), "b": python(GOOD)}
    )
    adapter = """name = "odd"\nadapter = { format = "jsonl", sample = [{ field = "*" }] }"""
    path.write_text(path.read_text().replace('name = "odd"', adapter))
    night = run_night(read_matrix(path), tmp_path / "night")
    assert [outcome.state for outcome in night.jobs] == ["invalid", "completed"]


@pytest.mark.slow
def test_a_second_run_of_a_night_is_told_who_runs_it_and_ends_with_3(tmp_path: Path, settings: Settings) -> None:
    path = write_matrix(tmp_path / "m.toml", {"a": ("sleep", "60"), "b": python(GOOD)})
    folder = settings.nights_dir / new_night_id()
    command = [sys.executable, "-m", "nightjar_ci", "run", str(path)]
    environ = {**os.environ, "NIGHTJAR_STATE_DIR": str(settings.state_dir)}
    running = subprocess.Popen([*command, "--out", str(folder)], env=environ, stdout=subprocess.DEVNULL)
    try:
        wait_for((job_folder(folder, "a") / "stderr.log").exists)
        for more in (["--resume"], ["--resume", "--out", str(folder)], ["--out", str(folder)]):
            second = subprocess.run([*command, *more], env=environ, capture_output=True, text=True, check=False)
            assert second.returncode == 3
            assert f"is being written by process {running.pid} on " in second.stderr
        assert not job_folder(folder, "b").exists()
    finally:
        running.kill()
        running.wait()
    write_matrix(path, {"a": python(GOOD), "b": python(GOOD)})
    third = subprocess.run([*command, "--resume"], env=environ, capture_output=True, text=True, check=False)
    assert third.returncode == 0, third.stderr


def test_a_night_is_never_written_over(tmp_path: Path) -> None:
    matrix = read_matrix(write_matrix(tmp_path / "m.toml", {"a": python(GOOD)}))
    run_night(matrix, tmp_path / "night")
    with pytest.raises(InputError, match="already holds a night"):
        run_night(matrix, tmp_path / "night")
    with pytest.raises(InputError, match="finished at"):
        run_night(matrix, tmp_path / "night", resume=True)


def test_a_night_takes_its_id_from_its_folder_only_where_that_is_one(tmp_path: Path) -> None:
    matrix = read_matrix(write_matrix(tmp_path / "m.toml", {"a": python(GOOD)}))
    night_id = new_night_id()
    assert run_night(matrix, tmp_path / night_id).id == night_id
    night = run_night(matrix, tmp_path / "out")
    assert night.id != "out"
    assert is_night_id(night.id)


def test_a_job_that_waits_in_a_queue_is_not_run_here_as_well(tmp_path: Path, settings: Settings) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "slurm.json").write_text('{"id": "7"}')
    outcome = prepare(make_job("true"), folder, Environments(settings))
    assert isinstance(outcome, Outcome)
    assert (outcome.state, "resume with the options of the first call" in str(outcome.message)) == ("not_started", True)
    assert (folder / "slurm.json").exists()


def test_a_store_that_breaks_half_way_does_not_stop_the_night(tmp_path: Path, settings: Settings, store: Store) -> None:
    database = settings.state_dir / "store.sqlite"
    breaking = python(f"import sqlite3; sqlite3.connect({str(database)!r}).execute('DROP TABLE measure')")
    matrix = read_matrix(write_matrix(tmp_path / "m.toml", {"a": breaking, "b": python(GOOD)}))
    with pytest.raises(NightjarError, match="measure"):
        run_night(matrix, tmp_path / "night", store=store)
    assert read_night(tmp_path / "night").outcome_of("b") is not None


def test_git_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    matrix = read_matrix(write_matrix(tmp_path / "m.toml", {"a": python(GOOD)}))
    assert run_night(matrix, tmp_path / "night").git is None


@pytest.mark.git
def test_a_checkout_without_a_commit_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    matrix = read_matrix(write_matrix(tmp_path / "m.toml", {"a": python(GOOD)}))
    subprocess.run(["git", "init", "--quiet"], check=True)
    assert run_night(matrix, tmp_path / "night").git is None
