"""The user's environment: the active one, else the virtual environment of nightjar-ci, else `python` on `PATH`.

In: the variables of the process. Out: its Python and the folders of its packages. An environment that `uv tool`, `uvx`
or `pipx` made for nightjar-ci alone is skipped: users install nothing else there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from nightjar_ci.errors import EnvironmentFailedError

OWN = "the environment of nightjar-ci"
_TIMEOUT_S = 60.0
_HINT = "activate the environment for the jobs, or name one: uv:<requirement>[,...] makes it"
# `-c` puts the working directory first, in which a job may have left a json.py
_PROGRAM = """import sys; sys.path = [folder for folder in sys.path if folder]
import json, platform, sysconfig
print(json.dumps([sys.executable, platform.python_version(), sys.version, sys.prefix, sys.base_prefix,
                  sysconfig.get_path("scripts"), sys.path]))"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A Python and its environment.

    Attributes:
        executable: the interpreter itself, not the shim of a version manager.
        found_by: `VIRTUAL_ENV`, `CONDA_PREFIX`, `PATH`, or `OWN`.
        build: version and compiler, as in `sys.version`.
        base_prefix: folder of the Python that a virtual environment was made from.
        is_hidden: the tool's own environment comes before it on `PATH`.
    """

    executable: Path
    found_by: str
    version: str
    build: str
    prefix: Path
    base_prefix: Path
    bin_dir: Path
    path: tuple[str, ...]
    is_hidden: bool = False

    @property
    def is_virtual(self) -> bool:
        return self.prefix != self.base_prefix

    def __str__(self) -> str:
        return f"{self.executable} (Python {self.version}, found by {self.found_by})"


def find_current() -> Interpreter:
    if prefix := os.environ.get("VIRTUAL_ENV"):
        executable = Path(prefix, "bin", "python")
        if not executable.is_file():
            hint = "`deactivate` or `unset VIRTUAL_ENV`, or recreate it: python -m venv"
            raise EnvironmentFailedError(f"current: VIRTUAL_ENV is {prefix}, which has no bin/python.", hint)
        return _inspect(executable.absolute(), "VIRTUAL_ENV")
    if (prefix := os.environ.get("CONDA_PREFIX")) and (executable := Path(prefix, "bin", "python")).is_file():
        return _inspect(executable.absolute(), "CONDA_PREFIX")
    if sys.prefix != sys.base_prefix and not _is_tool_environment(Path(sys.prefix)):
        return _inspect(Path(sys.executable).absolute(), OWN)  # called by its path, such as .venv/bin/nightjar-ci
    full_path = os.environ.get("PATH", os.defpath)
    path = _path_without_tool(full_path)
    program = shutil.which("python", path=path) or shutil.which("python3", path=path)
    if program is None:
        raise EnvironmentFailedError(
            "current: no Python: VIRTUAL_ENV and CONDA_PREFIX are not set, and no python is on PATH.", _HINT
        )
    return replace(_inspect(Path(program).absolute(), "PATH"), is_hidden=path != full_path)


def find_made_python(prefix: Path) -> Interpreter:
    """The Python of a virtual environment that uv made; no program of its packages runs, as `.pth` files can name."""
    prefix = prefix.absolute()
    made = _inspect(prefix / "bin" / "python", "uv", "-S")
    packages = map(str, prefix.glob("lib/python*/site-packages"))
    return replace(made, prefix=prefix, bin_dir=prefix / "bin", path=(*made.path, *packages))


def _path_without_tool(path: str) -> str:
    """`PATH` without the environment that a tool runner made for nightjar-ci alone; uvx adds it."""
    if not _is_tool_environment(Path(sys.prefix)):
        return path
    own = Path(sys.prefix, "bin").resolve()
    return os.pathsep.join(folder for folder in path.split(os.pathsep) if Path(folder).resolve() != own)


def _is_tool_environment(prefix: Path) -> bool:
    """Whether uv tool, pipx or uvx made an environment; uvx keeps its own in uv's cache, as an archive."""
    receipts = ("uv-receipt.toml", "pipx_metadata.json")
    return any((prefix / name).is_file() for name in receipts) or "archive-v0" in prefix.resolve().parts


@cache
def _inspect(executable: Path, found_by: str, *options: str) -> Interpreter:
    try:
        done = subprocess.run(
            [str(executable), *options, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=_TIMEOUT_S
        )
        own_path, version, build, prefix, base_prefix, bin_dir, path = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        problem = str(getattr(error, "stderr", None) or error).strip()
        raise EnvironmentFailedError(f"current: {executable} (found by {found_by}) fails: {problem}", _HINT) from None
    return Interpreter(
        executable=Path(own_path or executable),
        found_by=found_by,
        version=version,
        build=build,
        prefix=Path(prefix),
        base_prefix=Path(base_prefix),
        bin_dir=Path(bin_dir),
        path=tuple(path),
    )
