"""What the build of a package tries against the sandbox, in its backend, in its wheel, and when its Python starts."""

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from nightjar_ci.environments.installed import Frozen
from nightjar_ci.environments.prepare import prepare
from nightjar_ci.executors import supervisor
from tests.hostile.attempts import ATTEMPTS, PROGRAM
from tests.hostile.test_sandbox import snapshot, top
from tests.hostile.world import SECRET

__all__ = ["top"]
pytestmark = pytest.mark.sandbox
BACKEND = """import os, sys, zipfile
sys.argv = ['backend', 'attempts.json']
exec(open('program.py').read())
def build_wheel(folder, *_):
    with zipfile.ZipFile(os.path.join(folder, 'evil-1-py3-none-any.whl'), 'w') as wheel:
        for name, text in dict(FILES, done=json.dumps(done)).items():
            wheel.writestr(name, text)
        wheel.writestr('evil-1.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: evil\\nVersion: 1\\n')
        wheel.writestr('evil-1.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
        wheel.writestr('evil-1.dist-info/RECORD', '')
    return 'evil-1-py3-none-any.whl'
build_editable = build_wheel
"""
MORE = {
    "reads the passwords of other hosts": "assert 'other.example' in open(os.path.expanduser('~/.netrc')).read()",
    "writes uv's cache": "open(f'{HOME}/.cache/uv/x', 'w')",
    "writes the environment": "import glob; open(glob.glob(f'{WORK}/deep/state/environments/*/bin')[0] + '/x', 'w')",
    "plants a Python, and a link by which files of the user are moved": (
        "import glob\nfor folder in glob.glob(f'{WORK}/deep/state/environments/*.built'):\n"
        "    os.makedirs(f'{folder}/bin'); open(f'{folder}/bin/python', 'w').write('x')\n"
        "    os.symlink(f'{HOME}/.ssh', f'{folder}/keys')\nraise OSError"
    ),
}


@pytest.mark.parametrize("name", ["uv:./pkg", "uv:-e ./pkg", "project:./pkg"])
def test_no_attempt_of_a_build_succeeds(name: str, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, work = top / "home", top / "work"
    monkeypatch.setenv("UV_CACHE_DIR", str(home / ".cache" / "uv"))
    monkeypatch.setenv("NIGHTJAR_CACHE_DIR", str(home / ".cache" / "nightjar"))
    monkeypatch.setenv("API_TOKEN", SECRET)
    monkeypatch.setattr("nightjar_ci.environments.uv.freeze", lambda: Frozen(pins={}, folders={}))
    (home / ".cache" / "uv").mkdir()
    (home / ".config" / "uv" / "uv.toml").write_text("")
    (home / ".netrc").write_text("machine other.example login me password a-secret\n")
    (work / "pkg").mkdir()
    tried = {key: text for key, text in ATTEMPTS.items() if "NIGHT" not in text and "OUT" not in text}
    del tried["reaches the network"]  # a build may
    files = {
        "evil.pth": f"import os; open({str(home / 'ran')!r}, 'w')\n",
        "evil-1.data/data/pyvenv.cfg": "home = /nowhere\n",
    }
    with subprocess.Popen(["sleep", "60"]) as process, ExitStack() as stack:
        stack.callback(process.kill)
        values = {"ATTEMPTS": tried | MORE, "HOME": str(home), "WORK": str(work), "PID": process.pid, "FILES": files}
        values |= {"SUPERVISOR": supervisor.__file__}
        (work / "pkg" / "attempts.json").write_text(json.dumps(values))
        (work / "pkg" / "program.py").write_text(PROGRAM)
        (work / "pkg" / "backend.py").write_text(BACKEND)
        (work / "pkg" / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
            '[project]\nname = "evil"\nversion = "1"\n'
        )
        before = snapshot(home)
        made = prepare(name)
    assert made.interpreter is not None
    (packages,) = made.interpreter.prefix.glob("lib/python*/site-packages")
    assert json.loads((packages / "done").read_text()) == []
    assert {path for path, _ in snapshot(home).items() ^ before.items() if "/.cache/" not in path} == set()
    assert not (home / "ran").exists()
    assert (made.interpreter.prefix / "bin" / "python").is_symlink()
    assert "nowhere" not in (made.interpreter.prefix / "pyvenv.cfg").read_text()
