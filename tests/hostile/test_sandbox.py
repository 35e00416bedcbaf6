"""Attempts against the sandbox of a local job: none succeeds, and none leaves a trace."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nightjar_ci.bisect.result.explain import explain
from nightjar_ci.executors import supervisor
from nightjar_ci.executors.local import LocalExecutor
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.sandbox import visible
from tests.ci.jobs import HERE, make_job, python
from tests.hostile.attempts import ATTEMPTS, PROGRAM, SECRET_FILES
from tests.hostile.world import SECRET

pytestmark = pytest.mark.sandbox


@pytest.fixture
def top(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user with secrets and a project, not in /tmp, since a job has a /tmp of its own."""
    writable = next(path for path in (Path("/srv"), Path.home()) if os.access(path, os.W_OK))
    with TemporaryDirectory(prefix="nightjar-test-", dir=writable) as name:
        folder = Path(name).resolve()
        files = [folder / "home" / path for path in SECRET_FILES]
        files += [folder / path for path in ("elsewhere/x", "home/.cache/models/x")]
        work = folder / "work"
        files += [work / path for path in (".venv/pyvenv.cfg", ".venv/lib/x", ".nox/tests/pyvenv.cfg", "lib/sub/.git")]
        files += [work / path for path in (".git/config", ".git/HEAD", ".git/hooks/x", "deep/state/store.sqlite")]
        files += [work / "night" / path for path in ("night.json", "jobs/other/result.json", "jobs/own/x")]
        for path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{SECRET}\n")
        (work / ".gitmodules").write_text('[submodule "sub"]\n\tpath = lib/sub\n\turl = ../sub\n')
        monkeypatch.setenv("HOME", str(folder / "home"))
        monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(work / "deep" / "state"))
        monkeypatch.chdir(work)
        visible.find_trusted.cache_clear()
        yield folder


def run(top: Path, command: tuple[str, ...], **changes: object) -> Outcome:
    return LocalExecutor().run(make_job(*command, **changes), HERE, top / "work" / "night" / "jobs" / "own")


def log(top: Path) -> str:
    out = top / "work" / "night" / "jobs" / "own"
    return (out / "stdout.log").read_text() + (out / "stderr.log").read_text()


def snapshot(top: Path) -> dict[str, str]:
    paths = (path for path in top.rglob("*") if path.is_file() and "own" not in path.parts)
    return {str(path): path.read_text(errors="replace") for path in paths}


def test_no_attempt_succeeds(top: Path) -> None:
    shared = [Path(folder, "nightjar-hostile") for folder in ("/dev/shm", "/tmp")]
    for path in shared:
        path.write_text(SECRET)
    with subprocess.Popen(["sleep", "60"]) as process, socket.create_server(("127.0.0.1", 0)) as server:
        agent = socket.socket(socket.AF_UNIX)
        agent.bind(str(top / "home" / "agent"))
        agent.listen()
        work = top / "work"
        values: dict[str, object] = {
            "ATTEMPTS": ATTEMPTS,
            "HOME": str(top / "home"),
            "WORK": str(work),
            "NIGHT": str(work / "night"),
        }
        values |= {"PID": process.pid, "PORT": server.getsockname()[1], "OUT": str(work / "night" / "jobs" / "own")}
        values |= {"SUPERVISOR": supervisor.__file__}
        (work / "attempts.json").write_text(json.dumps(values))
        before = snapshot(top)
        outcome = run(top, (sys.executable, "-c", PROGRAM.replace("{", "{{").replace("}", "}}"), "attempts.json"))
        process.kill()
        agent.close()
    for path in shared:
        path.unlink()
    assert outcome.completed, log(top)
    assert json.loads(log(top).splitlines()[-1]) == []
    assert snapshot(top) == before
    assert not list((top / "home").rglob("hostile*"))


@pytest.mark.parametrize("name", ["home", "work/.git/hooks", "work/night", "work/deep/state", "elsewhere"])
def test_a_cache_of_programs_that_a_matrix_names_makes_nothing_writable(name: str, top: Path) -> None:
    text = f"import os; open({str(top / name / 'planted')!r}, 'w')"
    assert run(top, python(text), env={"JAX_COMPILATION_CACHE_DIR": str(top / name)}).state == "failed"
    assert not (top / name / "planted").exists()


def test_a_cache_of_programs_below_the_caches_is_written(top: Path) -> None:
    cache = top / "home" / ".cache" / "jax"
    cache.mkdir()
    text = f"open({str(cache / 'program')!r}, 'w')"
    assert run(top, python(text), env={"JAX_COMPILATION_CACHE_DIR": str(cache)}).completed, log(top)
    assert (cache / "program").exists()


def test_the_captures_of_a_bisection_are_confined(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightjar_ci.bisect.result.explain.find_profiler", lambda: None)
    command = [sys.executable, "-c", f"open('seen', 'w'); open({str(top / 'home' / 'planted')!r}, 'w')"]
    told, *_ = explain([("old", HERE, command), ("new", HERE, command)], top / "work" / "explain", 60, print)
    assert told.startswith("old was not captured: exit code 1")
    assert (top / "work" / "seen").exists()
    assert not (top / "home" / "planted").exists()


def test_a_repository_that_a_job_makes_in_the_working_directory_is_moved_away(top: Path) -> None:
    sub = top / "work" / "sub"
    sub.mkdir()
    os.chdir(sub)
    assert run(top, ("git", "init", "--quiet")).completed, log(top)
    assert not (sub / ".git").exists()
    (moved,) = sub.glob(".git-of-a-job-*/git/HEAD")  # the user may have made it at the same time
    assert moved.is_file()


def test_a_module_in_the_working_directory_does_not_run_outside(top: Path) -> None:
    planted = top / "work" / "json.py"
    planted.write_text(f"open({str(top / 'home' / 'ran')!r}, 'w')\n")
    from nightjar_ci.environments import current

    current._inspect.cache_clear()
    assert current.find_current().version
    assert not (top / "home" / "ran").exists()


@pytest.mark.parametrize("by", ["command", "variable", "setting"])
def test_what_a_job_needs_is_named_and_seen(by: str, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = top / "elsewhere" / "x"
    text = f"import sys; print(open({str(data)!r}).read())"
    assert run(top, python(text)).state == "failed"
    message = run(top, python(text)).message or ""
    assert f"NIGHTJAR_SANDBOX_READS={data}" in message.rpartition("Hint:")[2]
    if by == "setting":
        monkeypatch.setenv("NIGHTJAR_SANDBOX_READS", str(data))
    command = (*python(text), *([str(data)] if by == "command" else []))
    assert run(top, command, env={"DATA": str(data)} if by == "variable" else {}).completed, log(top)


@pytest.mark.parametrize(
    "word", ["/", "{home}", "{home}/..", "/etc/shadow", "/proc/1", "--x=/dev/vda", "{home}/.ssh/.."]
)
def test_a_word_that_names_too_much_shows_nothing_more(word: str, top: Path) -> None:
    text = "import os; print([n for n in os.listdir(os.environ['H']) if n != '.cache'], os.path.exists('/etc/shadow'))"
    command = (*python(text), word.replace("{home}", str(top / "home")))
    assert run(top, command, env={"H": str(top / "home")}).completed, log(top)
    assert log(top) == "[] False\n"


def test_a_program_finds_its_editable_project_and_its_base_python(top: Path) -> None:
    project = top / "elsewhere" / "project"
    project.mkdir()
    (project / "editable.py").write_text("print('imported')\n")
    venv = top / "envs" / "e"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    packages = next(venv.glob("lib/python*/site-packages"))
    (packages / "editable.pth").write_text(f"{project}\n")
    (top / "link").symlink_to(venv)
    assert run(top, (str(top / "link" / "bin" / "python"), "-c", "import editable, ssl")).completed, log(top)
    assert log(top) == "imported\n"
