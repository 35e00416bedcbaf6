"""A job in the sandbox: what it can do as before, and what it cannot."""

import errno
import os
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nightjar_ci.errors import InputError
from nightjar_ci.executors.local import LocalExecutor
from nightjar_ci.formats.night_folder import programs_folder
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.sandbox import visible
from nightjar_ci.sandbox.confine import Sandbox, find_sandbox
from nightjar_ci.sandbox.syscalls import render_filter
from nightjar_ci.settings import read_settings
from tests.ci.jobs import HERE, make_job, python

pytestmark = pytest.mark.sandbox
ANYWHERE = {"XDG_CACHE_HOME": "/", "HOME": "/"}


@pytest.fixture
def top() -> Iterator[Path]:
    """A folder that is not in /tmp, since a job has a /tmp of its own."""
    writable = next(path for path in (Path("/srv"), Path.home()) if os.access(path, os.W_OK))
    with TemporaryDirectory(prefix="nightjar-test-", dir=writable) as name:
        yield Path(name)


@pytest.fixture
def out(top: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a job; its caller works in `work`, has the home `home` and keeps Nightjar's state in `work`."""
    for name in ("home/.cache", "work", "work/.nightjar/nights/x"):
        (top / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(top / "home"))
    monkeypatch.chdir(top / "work")
    return top / "work" / ".nightjar" / "nights" / "x"


def run(program: str, out: Path, **changes: object) -> Outcome:
    return LocalExecutor().run(make_job(*python(program), **changes), HERE, out)


def log(out: Path) -> str:
    return (out / "stdout.log").read_text() + (out / "stderr.log").read_text()


def test_a_job_computes_and_leaves_its_results(out: Path) -> None:
    program = (
        "import os, pathlib, tempfile\n"
        "pathlib.Path(os.environ['NIGHTJAR_OUT'], 'left').write_text('1')\n"
        "pathlib.Path('here').write_text('2')\n"
        "print(tempfile.mkdtemp().startswith('/tmp/'), len(bytearray(50_000_000)))\n"
    )
    (out / "named").mkdir()
    program += "pathlib.Path(os.environ['NAMED'], 'x').touch()\n"
    outcome = run(program, out, env={"NAMED": "{out}/named"})
    assert (outcome.state, outcome.message) == ("completed", None)
    assert outcome.command[:2] == python(program)[:2]
    assert (outcome.peak_rss_bytes or 0) > 50e6
    assert (out / "left").read_text() == "1"
    assert Path("here").read_text() == "2"
    assert log(out) == "True 50000000\n"


def test_programs_and_files_in_the_tmp_of_the_system_are_seen_and_not_written(out: Path) -> None:
    with TemporaryDirectory(dir="/tmp") as name:
        program = Path(name, "env", "bin", "program")
        program.parent.mkdir(parents=True)
        (program.parents[1] / "library").write_text("here")
        Path(name, "data").mkdir()
        program.write_text('#!/bin/sh\ncat "${0%/bin/*}/library"; ls "$1"; echo x > "$1/new"\n')
        program.chmod(0o755)
        Path(name, "data", "table").touch()
        outcome = LocalExecutor().run(make_job(str(program), f"{name}/data", "x" * 5000), HERE, out)
        assert outcome.exit_code != 0
        assert "heretable" in log(out)
        assert "Read-only file system" in log(out)
        assert not Path(name, "data", "new").exists()


def test_a_program_makes_a_cache_beside_those_of_the_user_and_changes_none(
    out: Path, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = top / "home" / ".cache"
    (cache / "models").mkdir()
    (cache / "models" / "weights").write_text("seen")
    (cache / "link").symlink_to("models")
    program = (
        "import pathlib\n"
        "cache = pathlib.Path.home() / '.cache'\n"
        "(cache / 'kernels').mkdir()\n"
        "(cache / 'kernels' / 'one').write_text('compiled')\n"
        "print((cache / 'link' / 'weights').read_text())\n"
        "try:\n"
        "    (cache / 'models' / 'weights').write_text('changed')\n"
        "except OSError as error:\n"
        "    print(error.strerror)\n"
    )
    assert run(program, out).state == "completed", log(out)
    assert log(out) == "seen\nRead-only file system\n"
    assert sorted(path.name for path in cache.rglob("*")) == ["link", "models", "weights"]
    assert (cache / "models" / "weights").read_text() == "seen"
    monkeypatch.setattr(visible, "_CACHES_MAX", 1)
    assert run("import os; os.makedirs(os.path.expanduser('~/.cache/models'))", out).state == "completed", log(out)


@pytest.mark.parametrize("link", ["/", "..", "../.."])
def test_a_link_in_place_of_the_caches_brings_nothing_back(link: str, out: Path, top: Path) -> None:
    (top / "home" / ".cache").rmdir()
    (top / "home" / ".cache").symlink_to(link)
    sleeper = subprocess.Popen(["sleep", "60"])
    outcome = run(f"import os; print(os.path.exists('/proc/{sleeper.pid}'), os.listdir('/run'))", out, env=ANYWHERE)
    sleeper.kill()
    sleeper.wait()
    assert (outcome.state, log(out)[:6]) == ("completed", "False "), log(out)
    assert "docker" not in log(out)


@pytest.mark.parametrize(
    ("program", "variable"),
    [
        ("open('{home}/x', 'w')", "NIGHTJAR_SANDBOX_WRITES"),
        ("import socket; socket.create_connection(('192.0.2.1', 80), 3)", "NIGHTJAR_SANDBOX=network"),
        ("import urllib.request as r; r.urlopen('http://example.invalid')", "NIGHTJAR_SANDBOX=network"),
    ],
)
def test_a_refusal_names_the_variable_that_allows_it(program: str, variable: str, out: Path, top: Path) -> None:
    outcome = run(program.replace("{home}", str(top / "home")), out)
    assert outcome.state == "failed"
    assert variable in (outcome.message or "").rpartition("Hint:")[2]


def test_a_home_without_caches_gets_a_folder_for_them(out: Path, top: Path) -> None:
    (top / "home" / ".cache").rmdir()
    program = "import os; os.makedirs(os.path.expanduser('~/.cache/kernels'))"
    assert run(program, out).state == "completed", log(out)
    assert list((top / "home" / ".cache").iterdir()) == []


def test_named_folders_and_the_network_are_given(out: Path, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (top / "cache").mkdir()
    monkeypatch.setenv("NIGHTJAR_SANDBOX", "network")
    monkeypatch.setenv("NIGHTJAR_SANDBOX_WRITES", str(top / "cache"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = ("127.0.0.1", server.getsockname()[1])
        program = f"import socket; socket.create_connection({address}, 3); open({str(top / 'cache/x')!r}, 'w')"
        assert run(program, out).state == "completed", log(out)
    assert (top / "cache" / "x").exists()


def test_a_pair_or_a_question_sees_no_other_job_of_its_night(out: Path, top: Path) -> None:
    night = top / "work" / "night"
    for folder in ("jobs/a", "ab/cell/01-a"):
        (night / folder).mkdir(parents=True)
    (night / "night.json").touch()
    assert run(f"open({str(night / 'jobs/a/result.json')!r}, 'w')", night / "ab/cell/01-a").state == "failed"


def test_what_its_night_compiled_is_written_and_nothing_else_of_the_night(out: Path) -> None:
    job = out / "jobs" / "a"
    job.mkdir(parents=True)
    (programs := programs_folder(out)).mkdir()
    kept = "open(os.environ['NIGHTJAR_PROGRAMS'] + '/x', 'w')"
    assert run(f"import os; {kept}", job).state == "completed", log(job)
    assert (programs / "x").exists()
    assert run(f"open({str(out / 'night.json')!r}, 'w')", job).state == "failed"
    assert run(f"import os; {kept}", job, kind="profile").state == "failed"  # it is not told of them


def test_it_is_off_by_one_word(out: Path, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTJAR_SANDBOX", "off")
    assert run(f"open({str(top / 'home/x')!r}, 'w')", out).state == "completed"
    assert find_sandbox(read_settings({"NIGHTJAR_SANDBOX": "off"}), top) is None


def test_ends_are_told_as_without_a_sandbox(out: Path) -> None:
    outcome = run("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", out)
    assert (outcome.exit_code, outcome.signal) == (None, "SIGSEGV")
    assert run("raise SystemExit(7)", out).exit_code == 7
    missing = LocalExecutor().run(make_job("no-such-program"), HERE, out)
    assert (missing.state, "no command 'no-such-program'" in (missing.message or "")) == ("not_started", True)


def test_a_timeout_lets_a_job_end_and_leaves_nothing(out: Path, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (top / "tmp").mkdir()  # in /tmp stand the folders of other tests' jobs, too
    monkeypatch.setattr(tempfile, "tempdir", str(top / "tmp"))
    program = (
        "import signal, sys, time\n"
        "def end(*_):\n    print('ended by itself', flush=True)\n    sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, end)\nprint('ready', flush=True)\ntime.sleep(60)\n"
    )
    outcome = run(program, out, timeout_s=3.0)
    assert outcome.state == "timeout"
    assert outcome.duration_s < 6
    assert log(out).splitlines() == ["ready", "ended by itself"]
    assert not list((top / "tmp").iterdir())


def test_a_child_that_leaves_the_session_is_ended(out: Path) -> None:
    program = "import subprocess; subprocess.Popen(['sleep', '7117.5'], start_new_session=True)"
    assert run(program, out).completed
    assert subprocess.run(["pgrep", "-f", "sleep 7117.5"], check=False).returncode == 1


def test_a_job_ends_with_a_supervisor_that_is_killed(out: Path) -> None:
    def kill() -> None:
        pids: list[str] = []
        while not pids or not (out / "ready").exists():
            pids = subprocess.run(
                ["pgrep", "-f", "supervisor.py.*7117[.]25"], capture_output=True, text=True
            ).stdout.split()
        os.kill(int(pids[0]), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    program = f"import subprocess; open({str(out / 'ready')!r}, 'w'); subprocess.run(['sleep', '7117.25'])"
    assert run(program, out).signal == "SIGKILL"
    killer.join()
    time.sleep(0.2)
    assert subprocess.run(["pgrep", "-f", "^sleep 7117[.]25"], check=False).returncode == 1


def test_jax_computes_in_it(out: Path) -> None:
    program = "import socket, jax; print(float(jax.jit(lambda x: (x @ x).sum())(jax.numpy.ones((64, 64)))))"
    program += "; socket.create_server((socket.gethostname(), 0)).close(); print(socket.gethostname())"  # as gloo does
    assert run(program, out, timeout_s=120.0, env={"JAX_PLATFORMS": "cpu"}).completed, log(out)
    assert "262144.0\nlocalhost\n" in log(out)


def test_a_working_directory_that_holds_the_home_folder_is_not_written(tmp_path: Path) -> None:
    for name in ("home", "o/x", "w"):
        (tmp_path / name).mkdir(parents=True)
    settings = replace(read_settings({}), state_dir=tmp_path / "state")
    sandbox = Sandbox(program="bwrap", home=tmp_path / "home", settings=settings)
    for cwd, is_written in ((tmp_path, False), (tmp_path / "w", True)):
        seen = sandbox.list_visible(["true"], {}, tmp_path / "o" / "x", cwd, tmp_path / "t")
        assert (("--bind", str(cwd)) in set(pairwise(seen.render()))) == is_written


@pytest.mark.parametrize("variables", [{"NIGHTJAR_SANDBOX": "yes"}, {"NIGHTJAR_SANDBOX_WRITES": "/no/such"}])
def test_wrong_settings_are_refused(variables: dict[str, str]) -> None:
    with pytest.raises(InputError, match="NIGHTJAR_SANDBOX"):
        read_settings(variables)


def _decide(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What the kernel answers: an error's number, or 0 for an allowed call."""
    data = struct.pack("=iIQ4Q", number, architecture, 0, *arguments, *[0] * (4 - len(arguments)))
    at = value = 0
    while True:
        code, if_true, if_false, operand = struct.unpack_from("=HBBI", program, 8 * at)
        if code == 0x06:
            return operand & 0xFFFF if operand >> 16 == 5 else {0x7FFF0000: 0}[operand]
        if code == 0x20:
            value = struct.unpack_from("=I", data, operand)[0]
        holds = {0x20: False, 0x15: value == operand, 0x45: bool(value & operand), 0x35: value >= operand}[code]
        at += 1 + (if_true if holds else if_false)


@pytest.mark.parametrize(
    ("machine", "architecture", "calls"),
    [
        ("x86_64", 0xC000003E, {"read": 0, "socket": 41, "fchmod": 91, "openat": 257, "keyctl": 250}),
        ("aarch64", 0xC00000B7, {"read": 63, "socket": 198, "fchmod": 52, "openat": 56, "keyctl": 219}),
    ],
)
def test_the_filter_of_system_calls(machine: str, architecture: int, calls: dict[str, int]) -> None:
    program = render_filter(machine)
    assert program is not None
    answers: dict[tuple[str, tuple[int, ...]], int] = {
        ("read", (3, 0o4755, 4)): 0,
        ("keyctl", (0,)): errno.ENOSYS,
        ("socket", (socket.AF_INET6,)): 0,
        ("socket", (socket.AF_VSOCK,)): errno.EAFNOSUPPORT,
        ("fchmod", (3, 0o2755)): 0,
        ("fchmod", (3, 0o4755)): errno.EPERM,
        ("openat", (0, 0, os.O_CREAT, 0o755)): 0,
        ("openat", (0, 0, os.O_RDONLY, 0o4755)): 0,  # nobody reads this mode
        ("openat", (0, 0, os.O_CREAT, 0o4755)): errno.EPERM,
        ("openat", (0, 0, os.O_TMPFILE, 0o4755)): errno.EPERM,
    }
    assert {call: _decide(program, architecture, calls[call[0]], *call[1]) for call in answers} == answers
    assert _decide(program, 0x40000003, calls["read"]) == _decide(program, architecture, 0x40000000) == errno.ENOSYS
    assert render_filter("riscv64") is None
