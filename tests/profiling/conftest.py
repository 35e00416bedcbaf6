"""Programs to capture: one with a fake JAX, which starts at once, and the way to run the command on them."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nightjar_profiling.cli import main
from tests.called import call
from tests.profiling.builders import training_trace

Run = Callable[..., "subprocess.CompletedProcess[str]"]

FAKE_JAX = """
import sys
from types import SimpleNamespace
import jax._src.xla_bridge
__version_info__ = (0, 8, 1)
__version__ = "0.8.1"
def live_arrays(): return []
def effects_barrier(): print("waited", file=sys.stderr)
def process_index(): return 0
def local_devices(): return [SimpleNamespace(device_kind="fake")]
def devices(): return local_devices()
def compute(): jax._src.xla_bridge.backends()
from jax import profiler
"""

FAKE_PROFILER = """
import os, pathlib, shutil
class ProfileOptions: pass
class StepTraceAnnotation:
    def __init__(self, name, **kwargs): pass
    def __enter__(self): print("enter", flush=True); return self
    def __exit__(self, *exception): print("exit", flush=True)
folder = None
def start_trace(log_dir, profiler_options=None):
    global folder
    if folder is not None: raise RuntimeError("already started")
    folder = log_dir
    print("start", flush=True)
def stop_trace():
    global folder
    print("stop", flush=True)
    made = pathlib.Path(folder, "plugins", "profile", "now")
    made.mkdir(parents=True)
    shutil.copyfile(os.environ["FAKE_TRACE"], made / "host.xplane.pb")
    folder = None
"""


def runner(folder: Path) -> Run:
    def run(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("NIGHTJAR_", "JAX_"))}
        environ |= {"JAX_PLATFORMS": "cpu", **variables}
        return call(main, *arguments, cwd=folder, environ=environ)

    return run


@pytest.fixture
def run_command(tmp_path: Path) -> Run:
    return runner(tmp_path)


@pytest.fixture
def fake_jax(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH with a `jax` that records what is asked of its profiler."""
    package = tmp_path / "fake" / "jax"
    (package / "_src").mkdir(parents=True)
    (package / "__init__.py").write_text(FAKE_JAX)
    (package / "profiler.py").write_text(FAKE_PROFILER)
    (package / "_src" / "__init__.py").write_text("")
    (package / "_src" / "xla_bridge.py").write_text("def backends(): return {}\n")
    return package.parent


@pytest.fixture
def variables(fake_jax: Path, tmp_path: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(fake_jax), "FAKE_TRACE": str(training_trace().write(tmp_path / "fake"))}
