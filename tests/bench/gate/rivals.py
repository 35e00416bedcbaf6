"""How are the rivals asked? In an environment of their own, made once by uv in `.nox/rivals-gate`.

In: series by name. Out: what each rival said about each, as `rival_rules` prints it.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests.bench.gate.noise import Array

HERE = Path(__file__).resolve().parent
PLACE = HERE.parents[2] / ".nox" / "rivals-gate"


class Rivals:
    def __init__(self, answers: Mapping[str, list[int]]) -> None:
        self._answers = {tuple(key.split("|")): found for key, found in answers.items()}
        self.names = tuple(dict.fromkeys(rival for rival, _ in self._answers))

    def of(self, rival: str, entry: str) -> Array:
        return np.array(self._answers[rival, entry], dtype=np.float64)


def ask_rivals(series: Mapping[str, Array], at: int) -> Rivals:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "series.npz"
        np.savez(path, at=np.array(at), **dict(series))  # type: ignore[arg-type]
        command = [str(make_environment()), str(HERE / "rival_rules.py"), str(path)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return Rivals(json.loads(done.stdout))


def make_environment(pins: Path = HERE / "rivals-apart.txt", place: Path = PLACE) -> Path:
    """The Python of an environment apart from ours, made once for each content of its pins."""
    wanted = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()
    python, stamp = place / "bin" / "python", place / "stamp"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    uv = shutil.which("uv", path=f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if uv is None:
        raise SystemExit("error: the rivals need uv to be installed. Hint: pip install uv")
    shutil.rmtree(place, ignore_errors=True)
    print(f"making the environment of {pins.name} (once)", file=sys.stderr, flush=True)
    subprocess.run([uv, "venv", "--quiet", "--no-project", "--python", sys.executable, str(place)], check=True)
    subprocess.run([uv, "pip", "install", "--quiet", "--python", str(python), "-r", str(pins)], check=True)
    stamp.write_text(wanted)
    return python
