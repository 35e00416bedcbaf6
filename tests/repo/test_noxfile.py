"""The front door: pip's mirrors reach uv, the tool lock pins pip, sessions keep the exit code of a command."""

from __future__ import annotations

import hashlib
import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from nox.command import CommandFailed

import noxfile

INDEX = "https://mirror.invalid/simple"


def test_uv_gets_the_index_and_certificates_that_pip_was_given(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {INDEX}\ncert = /ca.pem\n")
    settings = noxfile.read_pip_settings({}, [tmp_path / "absent", tmp_path / "pip.conf"])
    assert noxfile.render_uv_variables({}, settings) == {"UV_DEFAULT_INDEX": INDEX, "SSL_CERT_FILE": "/ca.pem"}


def test_a_variable_wins_over_pips_configuration_file(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://other.invalid/simple\n")
    settings = noxfile.read_pip_settings({"PIP_INDEX_URL": INDEX}, [tmp_path / "pip.conf"])
    assert settings["index-url"] == INDEX


@pytest.mark.parametrize("own", ["UV_DEFAULT_INDEX", "UV_INDEX_URL"])
def test_what_the_user_set_for_uv_stays(own: str) -> None:
    assert noxfile.render_uv_variables({own: "https://mine.invalid"}, {"index-url": INDEX}) == {}


def test_certificates_of_pips_configuration_reach_uv_on_a_machine_without_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SSL_CERT_FILE", "UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    assert noxfile.render_uv_variables(os.environ, {"cert": "/ca.pem"}) == {"SSL_CERT_FILE": "/ca.pem"}


def test_folders_that_pip_knows_as_extra_indexes_are_not_given_to_uv() -> None:
    settings = {"extra-index-url": f"file:///opt/simple {INDEX}"}
    assert noxfile.render_uv_variables({}, settings) == {"UV_INDEX": INDEX}


def test_a_broken_pip_configuration_is_left_to_pip(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("index-url = outside of any section\n")
    assert noxfile.read_pip_settings({}, [tmp_path / "pip.conf"]) == {}


class _Index:
    """A simple index on loopback that offers one pip wheel of our making."""

    def __init__(self, folder: Path) -> None:
        self.wheel = b"not really a wheel"
        (folder / "pip").mkdir()
        (folder / "pip" / "pip-1.0-py3-none-any.whl").write_bytes(self.wheel)
        (folder / "pip" / "index.html").write_text('<a href="pip-1.0-py3-none-any.whl#sha256=0">pip</a>')
        seen = self.authorizations = list[str | None]()

        class Handler(http.server.SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                seen.append(self.headers["Authorization"])
                super().do_GET()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=folder))
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def lock(self, digest: str, version: str = "1.0") -> str:
        return f"nox==1 \\\n    --hash=sha256:{'0' * 64}\npip=={version} \\\n    --hash=sha256:{digest}\n    # via x\n"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Index]:
    (tmp_path / "served").mkdir()
    monkeypatch.setattr(noxfile, "TOOLS", tmp_path)
    served = _Index(tmp_path / "served")
    yield served
    served.server.shutdown()
    served.server.server_close()


def test_pip_is_fetched_where_its_hash_is_the_locked_one(index: _Index) -> None:
    wheel = noxfile.fetch_pip(index.lock(hashlib.sha256(index.wheel).hexdigest()), index.url, None)
    assert wheel.read_bytes() == index.wheel


def test_a_password_of_the_index_is_sent_to_it_and_shown_to_nobody(index: _Index) -> None:
    private = index.url.replace("http://", "http://user:s3cret@")
    with pytest.raises(SystemExit) as caught:
        noxfile.fetch_pip(index.lock("1" * 64), private, None)
    assert "s3cret" not in str(caught.value)
    assert index.authorizations == ["Basic dXNlcjpzM2NyZXQ="] * 2


def test_a_pip_with_another_hash_is_refused(index: _Index) -> None:
    with pytest.raises(SystemExit, match=r"has no hash of docker/locks/tools\.txt"):
        noxfile.fetch_pip(index.lock("1" * 64), index.url, None)


def test_an_index_without_the_locked_pip_is_named(index: _Index) -> None:
    with pytest.raises(SystemExit, match=r"does not list pip-2\.0"):
        noxfile.fetch_pip(index.lock("1" * 64, version="2.0"), index.url, None)


def test_every_requirement_of_the_tool_lock_has_a_hash() -> None:
    lock = (noxfile.LOCKS / "tools.txt").read_text()
    names = re.findall(r"^(\S+)==", lock, re.MULTILINE)
    hashed = re.findall(r"^(\S+)==[^\n]*\\\n\s+--hash=sha256:", lock, re.MULTILINE)
    assert {"nox", "pip", "uv"} <= set(names)
    assert names == hashed


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

    def install(self, *_: str) -> None:
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
