"""The loss that a training script prints.

In: a script, and the environment in which it runs every night. It runs once, for a minute at most. Out: the pattern
of an adapter for its log, and lines that it reads; or the reason why there is none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from nightjar_ci.environments.prepare import Environments
from nightjar_ci.environments.sources import read_text
from nightjar_ci.formats.job import Job
from nightjar_ci.night.run_job import run_job

SHORT_RUN_S = 60.0
_GAP = r"[^\w.+-]{1,12}"  # between a name and its number: `=`, `: `, ` [`, `': `
_LOSS = re.compile(
    rf"(?P<name>(?:\b(?:train|training|val|valid|validation|test|eval|final) )?[\w/.-]*loss)"
    rf"(?P<gap>{_GAP}(?:Array\()?)(?:[-+]?\d|nan\b|inf\b)",
    re.IGNORECASE,
)
_STEP = re.compile(rf"(?P<name>\b(?:global_)?(?:step|iter(?:ation)?|it|update|batch|epoch))(?P<gap>{_GAP})\d", re.I)
_BAR = re.compile(r"\d+/\d+ \[\d")  # of tqdm: `10/100 [00:01<00:09, ...`
_EVALUATION = re.compile(r"(val|test|eval|final)\w*[ /_.\\s+-]*loss", re.IGNORECASE)
# Whose losses a line prints, such as `{"eval": {"loss": 2}}`, if that part has no loss of its own before.
_PART = re.compile(
    r"\b(?:train\w*|(?P<evaluation>val|valid|validation|test|eval|evaluation|final)\b(?![/.-]|\s+\S*loss\W+\d))", re.I
)
_SEED = re.compile(r"""--seed\b|DEFINE_integer\(\s*["']seed["']""")
_LENGTH = re.compile(
    r"""["'](--(?:num|max|n|total)?[-_]?(?:train(?:ing)?[-_])?(?:steps|iters|iterations|epochs|updates))["']"""
)
_MOST_BYTES = 2**20  # of a log
# A bar is drawn at each step that names its loss, and not whenever a tenth of a second is over.
BAR_VARIABLE = {"TQDM_MININTERVAL": "1e9"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortRun:
    """A script's short run.

    Attributes:
        length: its argument for the number of steps or epochs, if it has one.
        pattern: of an adapter for the lines of `file` that name the loss; None if there is none.
        problem: why there is none.
    """

    script: str
    seeded: bool
    length: str | None
    ended: bool
    pattern: str | None = None
    file: str = "stdout.log"
    lines: tuple[str, ...] = ()
    problem: str = "no lines of its output have a plain number of the training after the word `loss`"

    @property
    def has_bar(self) -> bool:
        return any(map(_BAR.search, self.lines))


def run_briefly(script: str, environment: str) -> ShortRun:
    """Runs a script of the working directory with seed 0."""
    text = read_text(Path(script))
    seeded, length = _SEED.search(text) is not None, _LENGTH.search(text)
    command = ("python", script, *(("--seed", "0") if seeded else ()))
    variables = {"PYTHONUNBUFFERED": "1", **BAR_VARIABLE}
    with TemporaryDirectory() as folder:
        job = Job(
            id="short-run", cell="short-run", replicate=None, kind="test", executor="local", timeout_s=SHORT_RUN_S,
            command=command, env=variables, environment=environment,
        )  # fmt: skip
        outcome = run_job(job, Path(folder), Environments())
        run = ShortRun(script=script, seeded=seeded, length=length and length[1], ended=outcome.completed)
        if outcome.state not in ("completed", "timeout"):
            return replace(run, problem=outcome.message or "it failed")
        logs = {
            name: Path(folder, name).read_bytes()[:_MOST_BYTES].decode(errors="replace")
            for name in ("stdout.log", "stderr.log")
        }
    if outcome.completed and outcome.exit_code:
        last = logs["stderr.log"].strip().rpartition("\n")[2]
        return replace(run, problem=f"it ended with exit code {outcome.exit_code}: {last}")
    for name, log in logs.items():
        lines = re.split(r"[\r\n]+", log)
        if (pattern := find_pattern(lines)) is not None:
            read = [line.strip() for line, _, _ in read_lines(lines, pattern)]
            return replace(run, pattern=pattern, file=name, lines=tuple(dict.fromkeys((*read[:2], read[-1]))))
    return run


def read_lines(lines: Sequence[str], pattern: str) -> Iterator[tuple[str, float, int | None]]:
    """The lines that a pattern matches, each with its loss and its step.

    Raises: ValueError: a line has no number there, or the pattern of a training loss reads an evaluation's.
    """
    for line in lines:
        if (match := re.search(pattern, line)) is not None:
            parts = [*_PART.finditer(line[: match.start("loss")])]
            if parts and parts[-1]["evaluation"] and not _EVALUATION.search(pattern):
                raise ValueError(line)
            step = match.groupdict().get("step")
            yield line, float(match["loss"]), None if step is None else int(step)


def find_pattern(lines: Sequence[str]) -> str | None:
    """The pattern that reads the most lines; a training loss rather than an evaluation's, `loss` rather than a part.

    >>> lines = ["step 0 val_loss 3 loss 2", "step 5 val_loss 2 loss 1"]
    >>> [loss for _, loss, step in read_lines(lines, find_pattern(lines))]
    [2.0, 1.0]
    """
    counts = Counter(pattern for line in lines for pattern in _propose(line))
    by_name = sorted(counts.items(), key=lambda item: r"\bloss" not in item[0].lower())
    for pattern, _ in sorted(by_name, key=lambda item: (_EVALUATION.search(item[0]) is not None, -item[1])):
        try:
            steps = [step for _, _, step in read_lines(lines, pattern)]
        except ValueError:  # a line of the same form without a number, with 12,345, or of an evaluation
            continue
        known = [step for step in steps if step is not None]
        if not known or known == sorted(set(known)):
            return pattern
    return None


def _propose(line: str) -> Iterator[str]:
    counts = [(match.start(), r"(?P<step>\d+)/\d+ \[") for match in _BAR.finditer(line)]
    for match in _STEP.finditer(line):
        counts.append((match.start(), rf"\b{_write(match['name'])}{_write_gap(match['gap'])}(?P<step>\d+)"))
    if len(counts) > 1 and re.search(r"(?i)\bepoch\b", line) and "global" not in line:
        counts = []  # of each epoch, and begin again with the next
    for loss in _LOSS.finditer(line):
        alone = r"(?<![A-Za-z] )(?<![/.-])"  # `loss` is neither `eval loss` nor `eval/loss`
        if re.search(r"([A-Za-z] |[/.-])$", line[: loss.start()]):
            alone = ""
        number = r"(?P<loss>[-+.\w]*\w(?:,\d[.\w]*)*)"  # with the separator of 12,345, which is an error and not 12
        value = rf"{alone}\b{_write(loss['name'])}{_write_gap(loss['gap'])}{number}"
        for start, count in counts:
            yield ".*?".join((count, value) if start < loss.start() else (value, count))
        yield value


def _write(text: str) -> str:
    return r"\s+".join(map(re.escape, text.split()))


def _write_gap(gap: str) -> str:
    """A gap whose spaces may be more or fewer: numbers are padded."""
    if not gap.strip():
        return r"\s+"
    return rf"\s*{_write(gap)}\s*"
