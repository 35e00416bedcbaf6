"""Small jobs and matrices that run in milliseconds, for tests of executors, runs and the command line."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nightjar_ci.environments.prepare import PreparedEnvironment
from nightjar_ci.formats.job import Job
from tests.ci.nights import record

HERE = PreparedEnvironment(name="current", kind="current", bin_dir=Path(sys.executable).parent)


def make_job(*command: str, **changes: Any) -> Job:
    values: dict[str, Any] = {
        "id": "demo-s0",
        "cell": "demo",
        "replicate": 0,
        "kind": "train",
        "command": command,
        "env": {},
        "environment": "current",
        "executor": "local",
        "timeout_s": 30.0,
    }
    return Job(**(values | changes))


def python(text: str) -> tuple[str, ...]:
    """A command that runs a Python program; its braces are no placeholders."""
    return (sys.executable, "-c", text.replace("{", "{{").replace("}", "}}"))


RESULT = record(0, values=[5.5, 5.1, 4.8], job="demo-s0").model_dump_json(by_alias=True)
GOOD = f"""
import os, pathlib, time
time.sleep(0.05)
pathlib.Path(os.environ["NIGHTJAR_OUT"], "result.json").write_text({RESULT!r})
"""


def write_matrix(path: Path, commands: Mapping[str, tuple[str, ...]], **defaults: Any) -> Path:
    lines = ['schema = "nightjar.matrix/1"', 'name = "small"', "[defaults]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in ({"timeout_s": 30} | defaults).items()]
    for name, command in commands.items():
        lines += ["[[job]]", f"name = {json.dumps(name)}", f"command = {json.dumps(command)}"]
    path.write_text("\n".join(lines) + "\n")
    return path


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "what the test waits for did not happen"
        time.sleep(0.02)
