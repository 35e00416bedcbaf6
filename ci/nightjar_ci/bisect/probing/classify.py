"""The classifiers that read one test of a rung: by exit code, or by a metric.

In: the outcome of the test's process, and the folder with its logs and result. Out: a `Classification`: good, bad, a
value, or *cannot tell*. The test itself is not run here. A test that could not run says nothing about its rung:
docs/bisect.md lists these cases, and `why_not_run` decides.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from nightjar_ci.bisect.search.types import Kind
from nightjar_ci.bisect.search.types import Outcome as Answer
from nightjar_ci.bisect.state import Probe, Question
from nightjar_ci.errors import InputError
from nightjar_ci.executors.ending import NO_MEMORY, NO_SPACE, explain_confinement
from nightjar_ci.executors.process import STDERR, STDOUT, read_tail
from nightjar_ci.formats.night_folder import read_result
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.run_record import Better, RunRecord
from nightjar_ci.untrusted.files import read_after_left_out, read_log
from nightjar_ci.untrusted.pattern_search import SEARCH_S, SlowPatternError, find_last, find_names, match_lines

SKIP_EXIT_CODE = 125  # git-bisect(1): "the current source code cannot be tested"
_SHELL = (126, 127)  # POSIX: a command that cannot be run, or is not found
_NUMBER = r"[-+]?(?:\d[\d_]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"

BadToo = Literal["crash", "timeout", "import"]
BAD_TOO: tuple[BadToo, ...] = ("crash", "timeout", "import")

_IMPORT = re.compile(r"^(ModuleNotFoundError|ImportError|SyntaxError|IndentationError)\b")
# `python -m pytest` without pytest, `python tests/new.py` before there was one.
_NO_PROGRAM = re.compile(r"\S*python[\d.]*: ((?:No module named|can't open file) .+)")
_NO_OPTION = re.compile(r"^ERROR: usage: .*\[file_or_dir\].*\n.+?: error: (.+)", re.M)  # pytest's, of a missing plugin
_NO_TESTS = re.compile(r"no tests ran in|Interrupted: \d+ errors? during collection")


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """The classification of one test.

    Attributes:
        answer: by exit code or judge; None if a metric is read.
        why: why it cannot tell, or the judge's finding.
    """

    answer: Answer | None = None
    value: float | None = None
    why: str | None = None


class Classifier(Protocol):
    """Classifies a test by its logs and result."""

    @property
    def better(self) -> Better | None:
        """Which values are better, if it reads a metric."""

    def read(self, outcome: Outcome, folder: Path, good_end: RunRecord | None) -> Classification:
        """The answer of one test.

        Args:
            folder: with its logs, and its result if it left one.
            good_end: a result of the good end, for classifiers that compare with it.
        """


def why_not_run(outcome: Outcome, folder: Path, looked_for: Collection[BadToo] | None = None) -> str | None:
    """Why a test could not run, or None if it ran.

    Args:
        looked_for: outcomes that are not a reason, since the bisection looks for them; None if it cannot.
    """
    bad_too = looked_for or ()

    def counted(kind: BadToo) -> str:
        return "" if looked_for is None else f", --failure {kind} counts it as bad"

    if outcome.state == "not_started":
        return outcome.message or "the test could not be started"
    if outcome.state == "timeout":
        if "timeout" in bad_too:
            return None
        return f"still running after {outcome.duration_s:.0f} s: --timeout-s gives it more time{counted('timeout')}"
    if outcome.signal is not None:
        if "crash" in bad_too:
            return None
        return f"killed by {outcome.signal}{counted('crash')}"
    code = outcome.exit_code or 0
    if code == SKIP_EXIT_CODE:
        return f"the test asked to skip it: exit code {SKIP_EXIT_CODE}"
    if code in _SHELL:
        return f"its command cannot be run: exit code {code}"
    if 128 < code <= 192:  # as a shell says it: 128 and the signal; others are a program's own, as of sys.exit(-1)
        if "crash" in bad_too:
            return None
        return f"exit code {code}: something in it was killed by signal {code - 128}{counted('crash')}"
    if code == 0:
        if outcome.state == "invalid":
            return outcome.message
        return None
    return _why_in_log(folder, bad_too)


def _why_in_log(folder: Path, bad_too: Collection[BadToo]) -> str | None:
    tail = read_tail(folder / STDERR)
    if sign := next((sign for sign in (*NO_SPACE, *NO_MEMORY) if sign in tail), None):
        return f"the machine failed: {sign}"
    last = next((line for line in reversed(tail.splitlines()) if line.strip()), "")
    if no_program := _NO_PROGRAM.fullmatch(last):
        return f"its command cannot be run: {no_program[1]}"
    if no_option := _NO_OPTION.search(tail):
        return f"pytest cannot be run: {no_option[1]}"
    if "import" in bad_too:
        return None
    if "Traceback (most recent call last)" in read_tail(folder / STDERR, 400) and _IMPORT.match(last):
        return f"it could not be imported: {last[:200]}"
    if no_tests := _NO_TESTS.search(read_tail(folder / STDOUT)):
        return f"no test ran: {no_tests[0]}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCode:
    """0 is good, anything else bad.

    Attributes:
        bad_too: ends that count as bad, and otherwise say nothing.
        failure: only a failure whose output this regular expression matches is bad; others say nothing.
    """

    bad_too: tuple[BadToo, ...] = ()
    failure: str | None = None
    search_s: float = SEARCH_S
    better: Better | None = None

    def read(self, outcome: Outcome, folder: Path, good_end: RunRecord | None) -> Classification:
        if self.failure is not None and not outcome.completed and outcome.state != "not_started":
            return self._search_failure(outcome, folder, self.failure)
        why = why_not_run(outcome, folder, self.bad_too)
        if why is not None:
            return Classification(answer="cannot_tell", why=why)
        if outcome.exit_code == 0:
            return Classification(answer="good")
        how = outcome.signal or ("time-out" if outcome.state == "timeout" else f"exit code {outcome.exit_code}")
        return Classification(answer="bad", why=how)

    def _search_failure(self, outcome: Outcome, folder: Path, pattern: str) -> Classification:
        how = outcome.signal or outcome.state.replace("_", " ")
        if outcome.exit_code is not None:
            how = f"exit code {outcome.exit_code}"
        try:
            for name in (STDERR, STDOUT):
                match = next(match_lines(pattern, read_log(folder, name), self.search_s), None)
                if match is not None:
                    return Classification(answer="bad", why=f"{how}, and line {match[0]} of {name} matches")
        except (OSError, SlowPatternError) as error:
            return Classification(answer="cannot_tell", why=f"its output: {getattr(error, 'strerror', None) or error}")
        return Classification(answer="cannot_tell", why=f"another failure: {how}, and no output like {pattern!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A number, of the test's result or its output.

    Attributes:
        name: a sample (its steady median) or a curve (its last value) of `result.json`, or `NAME=VALUE` on stdout.
        pattern: instead, a regular expression with one group that is searched on stdout; its last match counts.
    """

    better: Better | None
    name: str | None = None
    pattern: str | None = None
    search_s: float = SEARCH_S

    def read(self, outcome: Outcome, folder: Path, good_end: RunRecord | None) -> Classification:
        why = why_not_run(outcome, folder)
        if why is None and outcome.exit_code != 0:
            why = f"exit code {outcome.exit_code}: its metric is not trusted"
        if why is not None:
            return Classification(answer="cannot_tell", why=why)
        try:
            value = self._in_result(folder)
            if value is None:
                value = self._in_log(folder)
            if value is None:
                return Classification(answer="cannot_tell", why=self._why_none(folder))
        except (OSError, SlowPatternError) as error:
            return Classification(answer="cannot_tell", why=f"its output: {getattr(error, 'strerror', None) or error}")
        if not math.isfinite(value):
            return Classification(answer="cannot_tell", why=f"{self._described} is {value}")
        return Classification(value=value)

    @property
    def _described(self) -> str:
        if self.pattern is None:
            return f"{self.name}=VALUE"
        return f"text like {self.pattern!r}"

    def _in_result(self, folder: Path) -> float | None:
        if self.name is None:
            return None
        record = read_result(folder)
        if record is None:
            return None
        if (sample := record.sample(self.name)) is not None:
            return sample.level
        curve = record.curve(self.name)
        if curve is not None and curve.values:
            return curve.values[-1]
        return None

    def _in_log(self, folder: Path) -> float | None:
        pattern = self.pattern or rf"(?<![\w.]){re.escape(self.name or '')}\s*[=:]\s*({_NUMBER})(?![\w])"
        log, _ = read_after_left_out(read_log(folder, STDOUT))  # before it is not the last one, or was kept behind it
        last = find_last(pattern, log, self.search_s)
        try:
            if last is None:
                return None
            return float(last.replace(",", ""))
        except ValueError:
            return None

    def _why_none(self, folder: Path) -> str:
        """A message that it printed no such number, with the names of the numbers that it did print."""
        what = f"it printed no {self._described}"
        log, left_out = read_after_left_out(read_log(folder, STDOUT))
        if left_out:
            what += f" in the last 8 MiB of its output; {left_out:,} bytes before were not kept"
        any_name = rf"(?<![\w.])([A-Za-z_][\w.]*)\s*[=:]\s*{_NUMBER}(?![\w])"
        if self.pattern is None and (printed := find_names(any_name, log, self.search_s)):
            what += f", but {', '.join(printed)}"
        return what


def parse_metric(text: str, better: Better, search_s: float = SEARCH_S) -> Metric:
    """A metric as `--metric` names it: a name, or a regular expression with one group."""
    if "(" not in text:
        return Metric(better=better, name=text)
    check_pattern(text, "--metric", groups=1)
    return Metric(better=better, pattern=text, search_s=search_s)


def check_pattern(pattern: str, option: str, groups: int | None = None) -> None:
    """Refuses an invalid regular expression, or one with another number of groups."""
    try:
        count = re.compile(pattern).groups
    except re.error as error:
        raise InputError(f"{option}: {pattern!r} is not a valid regular expression: {error}.") from None
    if groups is not None and count != groups:
        raise InputError(f"{option}: {pattern!r} has {count} groups, expected {groups}, around the number.")


def swap_good_and_bad(classification: Classification) -> Classification:
    """A classification for the search of a fix: bad is the state to leave, and is called good."""
    swapped: dict[Answer, Answer] = {"good": "bad", "bad": "good"}
    if classification.answer not in swapped:
        return classification
    return replace(classification, answer=swapped[classification.answer])


def quote_failure(folder: Path, probes: Sequence[Probe], kind: Kind, question: Question) -> list[str]:
    """The last output of the last failed test, if the good end fails: its command may be wrong."""
    failed = [probe for probe in probes if probe.exit_code not in (None, 0)]
    fails: Kind = "good_end_is_bad" if question.find == "regression" else "bad_end_is_good"
    if kind not in (fails, "no_change", "too_rare") or not failed:
        return []
    tail = read_tail(folder / failed[-1].folder / STDERR).strip()
    if not tail:
        return []
    said = f"{failed[-1].name} ended with exit code {failed[-1].exit_code}, and said last: {tail.splitlines()[-1]}"
    if question.executor == "local" and (confined := explain_confinement(tail)) is not None:
        return [said, f"{confined}."]
    return [said]
