"""`nightjar-models compile` as a user starts it."""

import os
import subprocess
import sys
from pathlib import Path


def compile_program(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "nightjar_models", "compile", *arguments)
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=300)


def test_without_a_folder_nothing_is_compiled(tmp_path: Path) -> None:
    done = compile_program("gpt_tiny", cwd=tmp_path)
    assert (done.returncode, "add --out FOLDER" in done.stderr) == (2, True)
