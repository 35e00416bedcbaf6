"""README's first command with each instruction set, under each Python: nothing changed, so nothing may be red.

In: nothing. Out: a row for each Python and instruction set: the verdicts that are not ok.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.table import Row
from tests.places import ROOT

PYTHONS = ("3.11", "3.12")  # with jaxlib 0.10.2 and 0.12.0.1 of docker/locks/dev.txt
LEVELS = ("", "AVX2", "SSE4_2")  # the first is all that this processor has
GOAL = "verdicts that are not ok, Python "


def list_goals() -> list[str]:
    return [_name(python, level) for python in PYTHONS for level in LEVELS]


def _name(python: str, level: str) -> str:
    return f"{GOAL}{python}, {level or 'default'}"


def measure() -> list[Row]:
    rows = []
    for python in PYTHONS:
        commands = make_environment(python)
        for level in LEVELS:
            name = _name(python, level)
            if commands is None:
                rows.append(Row(name, lack=f"no Python {python} on this machine"))
                continue
            rows.append(judge(name, commands, level))
    return rows


def make_environment(python: str) -> Path | None:
    """The `bin` of an environment with the three packages; None without this Python."""
    folder = ROOT / ".nox" / f"processors-{python}"
    make = subprocess.run(["uv", "venv", "--quiet", "--clear", "--python", python, str(folder)], check=False)
    if make.returncode:
        return None
    editable = [part for package in ("ci", "models", "profiling") for part in ("-e", str(ROOT / package))]
    constraints = ["--constraint", str(ROOT / "docker" / "locks" / "dev.txt")]
    environ = {**os.environ, "VIRTUAL_ENV": str(folder)}
    subprocess.run(["uv", "pip", "install", "--quiet", *editable, *constraints], env=environ, check=True)
    return folder / "bin"


def judge(name: str, commands: Path, level: str) -> Row:
    """One run of the quick matrix: how many verdicts are neither ok nor unjudged."""
    environ = {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": str(commands.parent)}
    if level:
        environ["XLA_FLAGS"] = f"--xla_cpu_max_isa={level}"
    with tempfile.TemporaryDirectory() as folder:
        environ["NIGHTJAR_STATE_DIR"] = f"{folder}/state"
        night = [str(commands / "nightjar-ci"), "nightly", str(ROOT / "ci" / "matrix" / "quick-cpu.toml")]
        code = subprocess.run([*night, "--out", f"{folder}/night"], env=environ, cwd=ROOT, check=False).returncode
        verdicts = json.loads(Path(folder, "night", "verdicts.json").read_text())["verdicts"]
    bad = [verdict for verdict in verdicts if verdict["status"] != "ok"]
    for verdict in bad:
        print(f"{name}: {verdict['status']}: {verdict['series']}: {verdict['explanation']}", file=sys.stderr)
    return Row(f"{name} ({len(verdicts)} verdicts, exit code {code})", ours=len(bad) + (code != 0), goal=0)
