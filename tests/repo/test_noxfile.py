"""The front door: pip's mirrors reach uv, the tool lock pins pip, sessions keep the exit code of a command."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from nox.command import CommandFailed

import noxfile
from tests.stand_ins import write_programs

INDEX, OTHER = "http://127.0.0.1:1/one", "http://127.0.0.1:1/other"


def test_uv_gets_the_index_and_certificates_that_pip_was_given(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {INDEX}\ncert = /ca.pem\n")
    settings = noxfile.read_pip_settings({}, [tmp_path / "absent", tmp_path / "pip.conf"])
    assert noxfile.render_uv_variables({}, settings) == {"UV_DEFAULT_INDEX": INDEX, "SSL_CERT_FILE": "/ca.pem"}


def test_a_variable_wins_over_pips_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {OTHER}\n")
    settings = noxfile.read_pip_settings({"PIP_INDEX_URL": INDEX}, [tmp_path / "pip.conf"])
    assert settings["index-url"] == INDEX


@pytest.mark.parametrize("own", ["UV_DEFAULT_INDEX", "UV_INDEX_URL"])
def test_what_the_user_set_for_uv_stays(own: str) -> None:
    assert noxfile.render_uv_variables({own: OTHER}, {"index-url": INDEX}) == {}


def test_folders_that_pip_knows_as_extra_indexes_are_not_given_to_uv(tmp_path: Path) -> None:
    settings = {"extra-index-url": f"{tmp_path.as_uri()} {INDEX}"}
    assert noxfile.render_uv_variables({}, settings) == {"UV_INDEX": INDEX}


def test_a_broken_pip_configuration_is_left_to_pip(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("index-url = outside of any section\n")
    assert noxfile.read_pip_settings({}, [tmp_path / "pip.conf"]) == {}


@pytest.mark.slow
def test_tools_are_installed_by_the_pip_that_python_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_freeze(pip: list[str]) -> str:
        return subprocess.run([*pip, "freeze", "--all"], capture_output=True, text=True, check=True).stdout

    bundled = noxfile.make_environment(tmp_path / "first")
    assert bundled[0] == str(tmp_path / "first" / "bin" / "python")
    assert "pip==" in read_freeze(bundled)
    monkeypatch.setattr(sys, "executable", bundled[0])  # a Python with pip
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "ensurepip" else name)
    own = noxfile.make_environment(tmp_path / "second")
    assert own[0] == bundled[0]
    assert read_freeze(own) == ""  # of the second, which has none
    assert (tmp_path / "second" / "bin" / "python").exists()


def test_a_python_without_any_pip_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(noxfile, "ROOT", tmp_path)
    monkeypatch.setattr(noxfile, "TOOLS", tmp_path / "tools")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit) as caught:
        noxfile.hand_over([])
    assert caught.value.code == 3
    assert "has neither venv's ensurepip nor pip.\nHint: on Debian, apt install python3-venv" in capsys.readouterr().err
    assert not (tmp_path / "tools").exists()


def test_an_old_python_is_told_which_one_is_needed() -> None:
    old = "import itertools, runpy, sys; del itertools.pairwise; sys.version_info = (3, 9)"
    command = [sys.executable, "-c", f"{old}; runpy.run_path({noxfile.__file__!r}, run_name='__main__')"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.stderr == "error: this is Python 3.9, expected 3.11 or newer. Hint: python3.11 noxfile.py\n"


def test_three_packages_of_the_tags_version_are_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["nightjar_ci-0.1.1-py3-none-any.whl", "nightjar_ci-0.1.1.tar.gz"]
    (tmp_path / "dist").mkdir()
    for name in (*names, "nightjar-0.1.1.tar.gz"):
        (tmp_path / "dist" / name).touch()
    monkeypatch.setattr(noxfile, "ROOT", tmp_path)
    session, ran = SimpleNamespace(posargs=["publish"]), list[str]()
    session.run = lambda *words, external: ran.extend(words)
    monkeypatch.setenv("GITHUB_REF_NAME", "v0.1.10")
    with pytest.raises(SystemExit, match="2"):
        noxfile.wheels(session)
    assert ran == []
    monkeypatch.setenv("GITHUB_REF_NAME", "v0.1.1")
    noxfile.wheels(session)
    assert ran[4:] == [str(tmp_path / "dist" / name) for name in names]


def test_every_requirement_of_the_tool_lock_has_a_hash() -> None:
    lock = (noxfile.LOCKS / "tools.txt").read_text()
    names = re.findall(r"^(\S+)==", lock, re.MULTILINE)
    hashed = re.findall(r"^(\S+)==[^\n]*\\\n\s+--hash=sha256:", lock, re.MULTILINE)
    assert {"nox", "pip", "uv"} <= set(names)
    assert names == hashed


@pytest.mark.parametrize(
    ("own", "programs", "chosen"),
    [
        ((3, 11), {}, None),
        ((3, 11), {"python3.12": "echo '(3, 12)'", "python3.13": "echo no such version >&2; exit 127"}, "3.12"),
        ((3, 11), {"python3.12": "echo '(3, 12)'", "python3.13": "echo '(3, 13)'"}, "3.13"),
        ((3, 11), {"python3.12": "echo '(3, 11)'"}, None),
        ((3, 12), {"python3.13": "echo '(3, 13)'"}, None),
    ],
)
def test_a_newer_python_is_taken_where_it_runs_and_this_one_gets_an_old_jax(
    own: tuple[int, int], programs: dict[str, str], chosen: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_programs(tmp_path, {name: f"#!/bin/sh\n{text}\n" for name, text in programs.items()})
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "version_info", own)
    assert noxfile.find_python() == chosen


def test_the_first_command_says_its_time(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop() -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(noxfile, "make_tools", stop)
    for session, said in (("quick", f"{noxfile.QUICK_TAKES}\n"), ("tests", "")):
        with pytest.raises(KeyboardInterrupt):
            noxfile.hand_over(["-s", session])
        assert capsys.readouterr().err == said


def test_the_first_page_is_made_from_locked_packages_without_the_tools_of_development(tmp_path: Path) -> None:
    session = _Noting()
    session.virtualenv = SimpleNamespace(location=str(tmp_path))
    noxfile.install(session, tools=False)  # type: ignore[arg-type]
    first, second, third = session.commands
    assert first == ("--require-hashes", "-r", str(noxfile.LOCKS / "models.txt"))
    assert second[:3] == ("--no-deps", "--build-constraints", str(noxfile.LOCKS / "dev.txt"))
    assert second[3::2] == ("-e", "-e", "-e")
    assert third[:2] == ("python", "-c")
    for package in third[2].removeprefix("import ").split(", "):
        assert importlib.util.find_spec(package)


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4])
def test_a_session_ends_with_the_exit_code_of_its_command(code: int, tmp_path: Path) -> None:
    (tmp_path / "noxfile.py").write_text(
        f"import sys; sys.path.insert(0, {str(noxfile.ROOT)!r})\n"
        "import nox, noxfile as front\n"
        "@nox.session(venv_backend='none')\n"
        "def answer(session):\n"
        f"    front.run_command(session, sys.executable, '-c', 'raise SystemExit({code})')\n"
    )
    (tmp_path / "noxfile.py").rename(tmp_path / "sessions.py")
    command = [sys.executable, "-m", "nox", "-f", str(tmp_path / "sessions.py"), "-s", "answer"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == code


class _Session:
    """As much of a session as installing needs; every installation fails."""

    class virtualenv:  # noqa: N801 - nox's name
        location = "/nonexistent"

    def install(self, *_: str, **__: object) -> None:
        raise CommandFailed("exit code 1")


@pytest.mark.parametrize(("lock", "code", "said"), [(None, 2, "no such file"), ("broken", 3, "could not be installed")])
def test_a_lock_that_is_missing_or_broken_is_not_an_answer(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lock: str | None,
    code: int,
    said: str,
) -> None:
    monkeypatch.setattr(noxfile, "LOCKS", tmp_path)
    if lock is not None:
        (tmp_path / "dev.txt").write_text(lock)
    with pytest.raises(SystemExit) as caught:
        noxfile.install(_Session())  # type: ignore[arg-type]
    assert caught.value.code == code
    message = capsys.readouterr().err
    assert f"error: {tmp_path / 'dev.txt'}" in message
    assert said in message
    assert "Hint: " in message


class _Noting:
    """As much of a session as preparing a machine or testing needs: it runs nothing."""

    def __init__(self, *posargs: str) -> None:
        self.posargs = posargs
        self.commands: list[tuple[str, ...]] = []
        self.virtualenv = SimpleNamespace(location="")

    def run(self, *command: str, **_: object) -> None:
        self.commands.append(command)

    install = run


def test_a_machine_that_has_a_program_gets_no_package_of_it(tmp_path: Path) -> None:
    """The script in a folder of its own, with an engine and an apt-get that write down what they are asked."""
    shutil.copy(noxfile.SYSTEM, tmp_path / "system.sh")
    write_programs(tmp_path, {"engine.sh": "#!/bin/sh\n"})
    text = f'#!/bin/sh\necho "$@" >> "{tmp_path}/asked"\n'
    write_programs(tmp_path / "bin", dict.fromkeys(("chromium", "podman", "apt-get"), text))
    for name in ("dirname", "sh", "env", "bash"):
        (tmp_path / "bin" / name).symlink_to(f"/usr/bin/{name}")
    subprocess.run(["/bin/bash", str(tmp_path / "system.sh")], env={"PATH": str(tmp_path / "bin")}, check=True)
    installed = set((tmp_path / "asked").read_text().split())
    assert {"bubblewrap", "postgresql", "docker-registry", "skopeo", "umoci", "git", "cosign"} <= installed
    assert not {"chromium", "podman"} & installed


@pytest.mark.parametrize(
    ("arguments", "alone"),
    [
        ("", False),
        ("-n 3 --dist worksteal", False),
        ("-m docker", False),
        ("tests/repo", True),
        ("tests/repo/test_noxfile.py", True),
        ("-x tests/repo/test_noxfile.py::test_one[a::b]", True),
        ("tests/repo/test_misspelt.py", True),
        ("-k gate", True),
        ("-kgate", True),
    ],
)
def test_named_tests_run_without_lint_and_types(monkeypatch: pytest.MonkeyPatch, arguments: str, alone: bool) -> None:
    monkeypatch.setattr(noxfile, "install", lambda session: None)
    session = _Noting(*arguments.split())
    noxfile.tests(session)
    quick = () if alone else (*noxfile.WORKERS, "-m", "not slow")
    assert session.commands[-1] == ("pytest", *quick, *arguments.split())
    assert ({command[0] for command in session.commands} == {"pytest"}) == alone
    assert ("mypy" in {command[0] for command in session.commands}) != alone
