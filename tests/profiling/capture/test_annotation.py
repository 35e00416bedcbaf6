"""The library calls: names for steps and parts, and a capture from inside a training loop."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import nightjar_profiling
from nightjar_profiling import annotate
from nightjar_profiling.capture.annotation import find_nvtx
from tests.profiling.builders import training_trace

LOOP = """
import sys, jax, nightjar_profiling
with nightjar_profiling.capture_steps("c", steps=({first}, {last})) as folder:
    for number in range(5):
        with nightjar_profiling.annotate("train", step=number):
            jax.compute()
    {inside}
print("after")
"""


BLOCKED = "(next(folder.glob('.nightjar-new-*')) / 'tables').touch()"


class Events(list[str]):
    def annotation(self, kind: str) -> Any:
        events = self

        class Annotation:
            def __init__(self, name: str, **kwargs: int) -> None:
                self.text = f"{kind} {name} {kwargs}" if kwargs else f"{kind} {name}"

            def __enter__(self) -> None:
                events.append(f"+{self.text}")

            def __exit__(self, *exception: object) -> None:
                events.append(f"-{self.text}")

        return Annotation


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    found = Events()
    jax, nvtx = ModuleType("jax"), ModuleType("nvtx")
    jax.profiler = SimpleNamespace(  # type: ignore[attr-defined]
        TraceAnnotation=found.annotation("trace"), StepTraceAnnotation=found.annotation("step")
    )
    nvtx.push_range = lambda name: found.append(f"push {name}")  # type: ignore[attr-defined]
    nvtx.pop_range = lambda: found.append("pop")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "nvtx", nvtx)
    find_nvtx.cache_clear()
    return found


@pytest.fixture(autouse=True)
def fresh_nvtx() -> Any:
    yield
    find_nvtx.cache_clear()


def test_a_step_is_a_range_of_nvtx_and_a_step_of_jax(events: Events) -> None:
    with annotate("train", step=3):
        events.append("inside")
    step = "step train {'step_num': 3}"
    assert events == ["push train 3", f"+{step}", "inside", f"-{step}", "pop"]


def test_a_decorated_function_is_named_at_every_call_also_within_itself(events: Events) -> None:
    @annotate("walk")
    def walk(depth: int) -> int:
        return walk(depth - 1) + 1 if depth else 0

    assert walk(1) == 1
    assert walk.__name__ == "walk"
    once = ["push walk", "+trace walk"]
    assert events == [*once, *once, "-trace walk", "pop", "-trace walk", "pop"]


def test_an_error_inside_is_passed_on_and_the_ranges_are_closed(events: Events) -> None:
    with pytest.raises(ValueError, match="boom"), annotate("train"):
        raise ValueError("boom")
    assert events[-2:] == ["-trace train", "pop"]


def test_without_jax_and_nvtx_nothing_is_imported_and_nothing_happens(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['nvtx'] = None\nfrom nightjar_profiling import annotate\n"
        "with annotate('a', step=1): pass\nprint('jax' in sys.modules, 'polars' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "False False\n"


def test_the_package_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'anotate'"):
        nightjar_profiling.anotate  # noqa: B018


def run_loop(folder: Path, fake_jax: Path, program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    trace = training_trace().write(folder / "fake")
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(fake_jax), "FAKE_TRACE": str(trace), **variables}
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


def test_a_loop_that_fails_leaves_the_capture_of_the_steps_it_did(fake_jax: Path, tmp_path: Path) -> None:
    done = run_loop(tmp_path, fake_jax, LOOP.format(first=1, last=2, inside="raise ValueError('diverged')"))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ValueError: diverged"
    profile = json.loads((tmp_path / "c" / "profile.json").read_text())
    assert profile["device_time_ns"] == 100
    assert profile["warnings"][0] == "The loop ended with ValueError: this profile may be incomplete."


def test_a_capture_that_cannot_be_written_is_a_warning_and_the_loop_goes_on(fake_jax: Path, tmp_path: Path) -> None:
    done = run_loop(tmp_path, fake_jax, LOOP.format(first=1, last=2, inside=BLOCKED))
    assert (done.returncode, done.stdout.split()[-1]) == (0, "after")
    assert "no capture was made: " in done.stderr
    assert "/tables: File exists." in done.stderr


def test_a_loop_captures_its_own_steps(fake_jax: Path, tmp_path: Path) -> None:
    done = run_loop(tmp_path, fake_jax, LOOP.format(first=1, last=2, inside="print(folder.name)"))
    assert done.returncode == 0, done.stderr
    one = ["enter", "exit"]
    assert done.stdout.split() == [*one, "start", *one, *one, "stop", *one, *one, "c", "after"]
    profile = json.loads((tmp_path / "c" / "profile.json").read_text())
    assert (profile["device_time_ns"], profile["steps"]) == (100, [1, 2])
    assert str(tmp_path / "c" / "report.html") in done.stderr
    assert not list((tmp_path / "c").glob(".nightjar*"))


def test_a_loop_under_nsys_goes_on_with_a_warning(fake_jax: Path, tmp_path: Path) -> None:
    loop = LOOP.format(first=1, last=2, inside="pass")
    done = run_loop(tmp_path, fake_jax, loop, NSYS_PROFILING_SESSION_ID="7")
    assert (done.returncode, done.stdout.split()[-1]) == (0, "after")
    assert "start" not in done.stdout
    assert "nsys records this program" in done.stderr
    assert not (tmp_path / "c").exists()


def test_a_loop_that_fails_fails_as_it_would_without(fake_jax: Path, tmp_path: Path) -> None:
    done = run_loop(tmp_path, fake_jax, LOOP.format(first=3, last=9, inside="raise SystemExit(7)"))
    assert done.returncode == 7
    assert "stop" in done.stdout


def test_steps_that_never_come_are_a_warning_and_the_program_goes_on(fake_jax: Path, tmp_path: Path) -> None:
    done = run_loop(tmp_path, fake_jax, LOOP.format(first=8, last=9, inside="pass"))
    assert done.returncode == 0
    assert done.stdout.split()[-1] == "after"
    assert "no capture was made: capture: '-c' ran steps 0 to 4: steps 8 to 9 never occurred" in done.stderr


def test_a_loop_needs_jax_and_an_empty_folder(fake_jax: Path, tmp_path: Path) -> None:
    program = LOOP.format(first=1, last=2, inside="pass")
    assert "JAX is not imported" in run_loop(tmp_path, fake_jax, program.replace(" jax,", "")).stderr
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "thesis.txt").write_text("precious")
    assert "not empty, and not a capture" in run_loop(tmp_path, fake_jax, program).stderr
    assert (
        "the last step is before the first" in run_loop(tmp_path, fake_jax, program.replace("(1, 2)", "(2, 1)")).stderr
    )


TWICE = """
import jax, nightjar_profiling
for out, first in (("a", 1), ("b", 3)):
    with nightjar_profiling.capture_steps(out, steps=(first, first)):
        for number in range(5):
            with nightjar_profiling.annotate("train", step=number):
                jax.compute()
"""


def test_a_program_captures_twice_into_two_folders(fake_jax: Path, tmp_path: Path) -> None:
    done = run_loop(tmp_path, fake_jax, TWICE)
    assert done.returncode == 0, done.stderr
    assert [json.loads((tmp_path / out / "profile.json").read_text())["steps"] for out in "ab"] == [[1, 1], [3, 3]]
    assert done.stdout.split().count("start") == 2


def test_a_capture_inside_a_capture_is_refused_and_the_outer_one_is_made(fake_jax: Path, tmp_path: Path) -> None:
    inner = "nightjar_profiling.capture_steps('d', steps=(1, 2)).__enter__()"
    done = run_loop(tmp_path, fake_jax, LOOP.format(first=1, last=2, inside=inner))
    assert done.returncode == 1
    assert f"InputError: capture_steps: already capturing into {tmp_path / 'c'}" in done.stderr
    assert (tmp_path / "c" / "report.html").is_file()
    assert not (tmp_path / "d").exists()


def test_a_loop_may_trace_itself_inside_a_capture(fake_jax: Path, tmp_path: Path) -> None:
    own = "jax.profiler.start_trace('own'); jax.compute(); jax.profiler.stop_trace()"
    loop = LOOP.format(first=1, last=9, inside=own)
    done = run_loop(tmp_path, fake_jax, loop)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "own" / "plugins" / "profile" / "now" / "host.xplane.pb").is_file()
    assert "the program started a trace of its own into own" in (tmp_path / "c" / "profile.json").read_text()
