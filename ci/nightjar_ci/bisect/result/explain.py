"""The comparison of both sides of a culprit: a capture of each, their difference, and what the compiler emitted.

In: the environments of both sides and the test. Out: text. The `nightjar-profiling` command, if it is installed, makes
and compares the captures. The optimized HLO comes from XLA's dump of the same run. Nothing here fails a bisection: the
text says what could not be obtained.
"""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from nightjar_ci.environments.prepare import PreparedEnvironment
from nightjar_ci.executors.process import STDERR, STDOUT, read_tail, run_process
from nightjar_ci.formats.policy import FactsPolicy
from nightjar_ci.formats.run_record import Facts, Memory, Tally
from nightjar_ci.judges.facts.diff import diff_lines
from nightjar_ci.untrusted.files import read_untrusted
from nightjar_ci.untrusted.inheritance import inherit

OnLine = Callable[[str], None]
PAGE = "difference.html"  # of two captures, in `diff/`
_DIFF_TIMEOUT_S = 600.0
_MOST_PROGRAMS = 8
_INSTRUCTION = re.compile(r"^[ \t]+(?:ROOT )?%?[\w.-]+ = (?:\(.*?\)|\S+) ([a-z][a-z0-9-]*)\(", re.MULTILINE)
_FUSION = re.compile(r"\bkind=(k\w+)")
_CUSTOM_CALL = re.compile(r'custom_call_target="([^"]+)"')
_DUMPED = re.compile(r"module_\d+\.(?P<program>.+?)\.(?:cpu|gpu|sm_[\w.]+?)_(?:gpu_)?after_optimizations\.txt")
_NO_MEMORY = Memory.model_validate(dict.fromkeys(Memory.model_fields))


def explain(
    sides: Sequence[tuple[str, PreparedEnvironment, Sequence[str]]],
    folder: Path,
    timeout_s: float,
    on_line: OnLine,
    inherited: Sequence[str] = (),
) -> tuple[str, ...]:
    """Captures of both sides and what is different in them.

    Args:
        sides: name, environment and test of the side before the culprit and of the culprit.
        folder: where captures and dumps go.
        timeout_s: wall time of one capture.
        on_line: called with one line of progress.
        inherited: names of variables that the test inherits besides those that every job does.
    """
    program = shutil.which("nightjar-profiling", path=f"{sysconfig.get_path('scripts')}:{os.environ.get('PATH', '')}")
    texts: list[str] = []
    captures: list[Path] = []
    dumps: list[Path] = []
    for (name, environment, command), side in zip(sides, ("before", "after"), strict=True):
        here = folder / side
        shutil.rmtree(here, ignore_errors=True)
        (here / "hlo").mkdir(parents=True)
        dumps.append(here / "hlo")
        environ = environment.entered(inherit(os.environ, inherited))
        flags = f"--xla_dump_to={here / 'hlo'} --xla_dump_hlo_as_text"
        environ |= {"XLA_FLAGS": f"{environ.get('XLA_FLAGS', '')} {flags}".strip(), "NIGHTJAR_OUT": str(here)}
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
    texts.append(diff_programs(*(read_dumps(dump) for dump in dumps)))
    return tuple(texts)


def _show(program: str, captures: Sequence[Path], folder: Path) -> str:
    """What two captures have different, also as a page; of one alone, where its time goes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    verb, page = ("diff", ["--html", str(folder / PAGE)]) if len(captures) == 2 else ("summary", [])
    shown = f"nightjar-profiling {verb} {' '.join(map(str, captures))}"
    problem = _run([program, verb, *map(str, captures), *page], inherit(os.environ), folder, _DIFF_TIMEOUT_S, None)
    if problem is None:
        return f"{shown}\n{read_tail(folder / STDOUT, 200)}"
    return f"{shown} failed: {problem}"


def read_dumps(folder: Path) -> dict[str, Facts]:
    """The facts of each program that XLA dumped; programs of one name are counted together."""
    dumps: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*after_optimizations.txt")):
        if name := _DUMPED.fullmatch(path.name):
            try:
                text = read_untrusted(folder, path.name)
            except OSError:
                continue
            dumps.setdefault(name["program"], []).append(text.decode("utf-8", errors="replace"))
    return {program: read_facts(program, "\n".join(texts)) for program, texts in dumps.items()}


def read_facts(program: str, text: str) -> Facts:
    """The facts of an HLO module's text: how many instructions of each kind; no bytes, which the text does not say.

    >>> text = "  ROOT %a.1 = (f64[3]{0}, s32[]) while(%t), body=%b\\n  %x = f64[3]{0} fusion(%p), kind=kLoop"
    >>> facts = read_facts("jit_f", text)
    >>> sorted(facts.opcodes), sorted(facts.fusions)
    (['fusion', 'while'], ['kLoop'])
    """
    return Facts(
        program=program,
        opcodes=_tally(_INSTRUCTION.findall(text)),
        fusions=_tally(_FUSION.findall(text)),
        custom_calls=_tally(_CUSTOM_CALL.findall(text)),
        collectives={},
        flops=None,
        memory=_NO_MEMORY,
    )


def diff_programs(before: dict[str, Facts], after: dict[str, Facts]) -> str:
    """What the compiler emits otherwise, program by program."""
    if not before or not after:
        return "XLA dumped no program on one side, so there are no compile facts to compare."
    lines = []
    for program in sorted({*before, *after}):
        if program not in before or program not in after:
            lines.append(f"{program}: {'appeared' if program in after else 'vanished'}")
        elif changed := diff_lines(before[program], after[program], FactsPolicy()):
            lines.append(f"{program}: {', '.join(changed)}")
    more = [f"and {len(lines) - _MOST_PROGRAMS} programs more"] if len(lines) > _MOST_PROGRAMS else []
    if not lines:
        return f"The optimized HLO of all {len(after)} programs has the same instructions on both sides."
    same = [name for name in before if name in after and not diff_lines(before[name], after[name], FactsPolicy())]
    unchanged = [f"Unchanged: {', '.join(same[:_MOST_PROGRAMS])}."] if same else []
    return "\n".join(["The optimized HLO differs:", *lines[:_MOST_PROGRAMS], *more, *unchanged])


def _tally(kinds: Sequence[str]) -> dict[str, Tally]:
    return {kind: Tally(count=count, bytes=0) for kind, count in Counter(kinds).items()}


def _run(argv: Sequence[str], environ: dict[str, str], folder: Path, timeout_s: float, cwd: Path | None) -> str | None:
    """Runs a command; why it failed, or None."""
    try:
        ended = run_process(argv, environ, folder, timeout_s, cwd=cwd)
    except (OSError, ValueError) as error:
        return f"{argv[0]!r} cannot be run: {error}."
    if ended.exit_code == 0:
        return None
    tail = read_tail(folder / STDERR).splitlines()
    first = next((at for at, line in enumerate(tail) if line.startswith("error: ")), -5)  # of ours, after the program's
    return "\n".join([f"{ended.signal or f'exit code {ended.exit_code}'}:", *tail[first:]])
