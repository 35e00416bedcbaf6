"""The comparison of both sides of a culprit: a capture of each, their difference, and the compiler's output.

In: the environments of both sides and the test. Out: text. The `nightjar-profiling` command, if it is installed, makes
and compares the captures. The optimized HLO comes from XLA's dump of the same run. Nothing here fails a bisection: the
text names missing parts.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from nightjar_ci.bisect.ladders.rung import OnLine
from nightjar_ci.bisect.sensors.programs import compare_programs, dump_flags, read_programs
from nightjar_ci.causes.explained import LIMIT_S, read_line, render_question
from nightjar_ci.environments.prepare import PreparedEnvironment
from nightjar_ci.executors.local import run_confined
from nightjar_ci.executors.process import STDERR, STDOUT, read_tail
from nightjar_ci.untrusted.inheritance import inherit

PAGE = "difference.html"  # of two captures, in `diff/`
_DIFF_TIMEOUT_S = 600.0

Sides = Sequence[tuple[str, PreparedEnvironment, Sequence[str]]]


def explain(
    sides: Sides,
    folder: Path,
    timeout_s: float,
    on_line: OnLine,
    inherited: Sequence[str] = (),
) -> tuple[str, ...]:
    """Captures of both sides and their differences.

    Args:
        sides: name, environment and test of the side before the culprit and of the culprit.
        inherited: names of variables that the test inherits besides every job's.
    """
    program = find_profiler()
    texts: list[str] = []
    captures: list[Path] = []
    dumps: list[Path] = []
    for (name, environment, command), side in zip(sides, ("before", "after"), strict=True):
        here = folder / side
        shutil.rmtree(here, ignore_errors=True)
        (here / "hlo").mkdir(parents=True)
        dumps.append(here / "hlo")
        environ = environment.entered(inherit(os.environ, inherited))
        environ |= {
            "XLA_FLAGS": f"{environ.get('XLA_FLAGS', '')} {dump_flags(str(here / 'hlo'))}".strip(),
            "NIGHTJAR_OUT": str(here),
        }
        argv = [part.replace("{out}", str(here)) for part in command]
        if program is not None:
            argv = [program, "capture", "--out", str(here / "capture"), "--", *argv]
        on_line(f"capturing {name}")
        problem = _run(argv, environ, here, timeout_s, environment.folder)
        if problem is not None:
            texts.append(f"{name} was not captured: {problem}")
        elif program is not None:
            captures.append(here / "capture")
    if program is None:
        texts.append("There is no profile: nightjar-profiling is not installed beside nightjar-ci.")
    elif captures:
        on_line("comparing the captures" if len(captures) == 2 else "summing up the capture")
        texts.append(_show(program, captures, folder / "diff"))
    compared = "\n".join(compare_programs(*map(read_programs, dumps)))
    texts.append(compared or "XLA dumped no program on one side, so there are no programs to compare.")
    return tuple(texts)


def find_line(sides: Sides, folder: Path, on_line: OnLine, inherited: Sequence[str] = ()) -> list[str]:
    """The first line of the culprit that computes other numbers, if the test trains a preset."""
    (_, before, _), (_, environment, command) = sides
    question = render_question(command)
    if question is None or before.interpreter is None or before.interpreter == environment.interpreter:
        return []
    on_line("looking for the first line that computes other numbers")
    folder.mkdir(parents=True, exist_ok=True)
    argv = [*question, f"python={before.interpreter.executable}", "--json"]
    environ = environment.entered(inherit(os.environ, inherited))
    shown = (before.interpreter.prefix, before.interpreter.base_prefix, before.folder)
    named = [str(path) for path in shown if path is not None]
    problem = _run(argv, environ, folder, LIMIT_S, environment.folder, named)  # exit code 1 if the sides differ
    return [read_line(folder, Path(STDOUT)) or f"No line was found: {problem}"]


def find_profiler() -> str | None:
    return shutil.which("nightjar-profiling", path=f"{sysconfig.get_path('scripts')}:{os.environ.get('PATH', '')}")


def _show(program: str, captures: Sequence[Path], folder: Path) -> str:
    """The differences of two captures, also as a page; of a single one, its time by operation."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    verb, page = ("diff", ["--html", str(folder / PAGE)]) if len(captures) == 2 else ("summary", [])
    shown = f"nightjar-profiling {verb} {' '.join(map(str, captures))}"
    named = list(map(str, captures))
    problem = _run([program, verb, *named, *page], inherit(os.environ), folder, _DIFF_TIMEOUT_S, None, named)
    if problem is None:
        return f"{shown}\n{read_tail(folder / STDOUT, 200)}"
    return f"{shown} failed: {problem}"


def _run(
    argv: Sequence[str],
    environ: dict[str, str],
    folder: Path,
    timeout_s: float,
    cwd: Path | None,
    named: Sequence[str] = (),
) -> str | None:
    """Runs a command, confined like the test; returns why it failed, or None."""
    try:
        ended = run_confined(argv, environ, folder, timeout_s, cwd=cwd or Path.cwd(), named=named)
    except (OSError, ValueError) as error:
        return f"{argv[0]!r} cannot be run: {error}."
    if ended.exit_code == 0:
        return None
    tail = read_tail(folder / STDERR).splitlines()
    first = next((at for at, line in enumerate(tail) if line.startswith("error: ")), -5)  # of ours, after the program's
    return "\n".join([f"{ended.signal or f'exit code {ended.exit_code}'}:", *tail[first:]])
