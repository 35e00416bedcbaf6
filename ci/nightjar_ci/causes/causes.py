"""The causes of a night: failures and regressions in groups that one change explains, red first.

In: the open verdicts and failed jobs of a row of nights. Out: a `Cause` for each group. Regressions that began between
the same two nights are one cause, whatever judge found them; so are jobs that failed with the same message, with the
series that they did not measure. A doubt joins the regressions that began with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from nightjar_ci.causes.status import Open, Row, find_changes, find_open
from nightjar_ci.executors.ending import find_reason
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.gate.reruns import EnvironmentOf
from nightjar_ci.judges.finding import count
from nightjar_ci.store.nights import StoredNight

Kind = Literal["failed", "regressed", "cannot_tell", "improved"]
RED_FIRST: tuple[Kind, ...] = ("failed", "regressed", "cannot_tell", "improved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One group of failures or regressions.

    Attributes:
        explanation: of its worst verdict, or the message of its jobs.
        verdicts: worst first.
        good: the last good night; None if it is not known.
        nights: number of bad nights.
        changes: differences between the last good night and the first bad one.
        knows_packages: whether the last good night and the first bad one recorded theirs.
        in_git: whether the first bad night knows its commit.
        command: the next one to run.
    """

    kind: Kind
    title: str
    explanation: str
    verdicts: tuple[Verdict, ...] = ()
    jobs: tuple[str, ...] = ()
    since: str
    good: str | None
    nights: int
    changes: tuple[str, ...] = ()
    knows_packages: bool = True
    in_git: bool = True
    command: str | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(verdict.cell for verdict in self.verdicts))

    @property
    def is_red(self) -> bool:
        return self.kind in ("failed", "regressed")

    @property
    def is_new(self) -> bool:
        return self.nights == 1

    @property
    def when(self) -> str:
        nights = "New tonight"
        if not self.is_new:
            nights = f"Since night {self.since}, for {self.nights} nights"
        return f"{nights}; the last good night is {self.good or 'not known'}."

    @property
    def what_changed(self) -> str:
        if self.changes:
            return "; ".join(self.changes) + "."
        if self.good is None:
            return "Unknown, as the last good night is."
        if not self.knows_packages:
            return "Not known: its packages were not recorded in both nights."
        if self.in_git:
            return "No package and no commit: look at changes that are not committed, then at the machine."
        return "No package; the folder is not in git, so a change of its files is not seen."


def find_causes(row: Row, environment_of: EnvironmentOf = lambda cell, night: None) -> tuple[Cause, ...]:
    """The causes in the latest night of a row: red first, of these tonight's, then by kind and size.

    A curve that is not finite, or whose numbers changed, comes before what only became slower.
    """
    verdicts = find_open(row, environment_of)
    causes = [*_group_failed(row, verdicts)]
    taken = {verdict.series for cause in causes for verdict in cause.verdicts}
    left = [opened for opened in verdicts if opened.verdict.judge != "presence" or opened.verdict.series not in taken]
    causes += [cause for cause, _ in group_open(left)]
    improved = tuple(verdict for verdict in row.latest.loud if verdict.status == "improved")
    if improved:
        night, before = row.latest.id, row.nights[-2][0].id if len(row.nights) > 1 else None
        title, explanation = _title(improved, "improved"), improved[0].explanation
        causes.append(
            Cause(
                kind="improved",
                title=title,
                explanation=explanation,
                verdicts=improved,
                since=night,
                good=before,
                nights=1,
            )
        )
    return tuple(sorted(causes, key=urgency))


def urgency(cause: Cause) -> tuple[bool, bool, int, bool, int]:
    is_slower = all(verdict.judge != "convergence" for verdict in cause.verdicts)
    kind = RED_FIRST.index(cause.kind)
    return not cause.is_red, not cause.is_new, kind, is_slower, -len(cause.verdicts)


def _group_failed(row: Row, verdicts: Sequence[Open]) -> Iterator[Cause]:
    """Failed jobs by how they ended, each with the series that it did not measure."""
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in row.latest.failed:
        groups.setdefault((outcome.state, shorten_message(outcome)), []).append(outcome)
    for (state, message), outcomes in groups.items():
        cells = {outcome.cell for outcome in outcomes}
        absent = [opened for opened in verdicts if opened.verdict.judge == "presence" and opened.verdict.cell in cells]
        since, good, nights = _find_failing(row, {outcome.job for outcome in outcomes})
        is_recorded = good is not None and bool(good.packages and since.packages)
        jobs = tuple(outcome.job for outcome in outcomes)
        named = jobs[0] if len(jobs) == 1 else f"{len(jobs)} jobs"
        yield Cause(
            kind="failed",
            title=f"{named}: {state.replace('_', ' ')}",
            explanation=message,
            verdicts=tuple(opened.verdict for opened in absent),
            jobs=jobs,
            since=since.id,
            good=None if good is None else good.id,
            nights=nights,
            changes=() if good is None else tuple(find_changes(good, since, good, since)),
            knows_packages=is_recorded and {outcome.environment for outcome in outcomes} == {row.latest.environment},
            in_git=since.git_sha is not None,
        )


def shorten_message(outcome: Outcome) -> str:
    """The error of a failed job, or its last line, else how it ended; without parts that differ from run to run."""
    message = outcome.message or ""
    lines = [line.strip() for line in message.splitlines() if line.strip() and not line.startswith("Hint: ")]
    if not lines:
        return "no message"
    text = find_reason(message) or lines[-1]
    if outcome.state != "failed":
        text = lines[0].partition(" The last lines of ")[0]
    text = re.sub(r"0x[0-9a-f]+", "0x...", re.sub(r"\bafter [\d.]+ s\b", "after ... s", text))
    return text.replace(outcome.job, "JOB")[:300]


def _find_failing(row: Row, jobs: set[str]) -> tuple[StoredNight, StoredNight | None, int]:
    """The first of the consecutive nights in which one of some jobs failed, the night before, and their number."""
    first, number = row.latest, 0
    for night, _ in reversed(row.nights):
        if not jobs & {outcome.job for outcome in night.failed}:
            return first, night, number
        first, number = night, number + 1
    return first, None, number


def group_open(verdicts: Sequence[Open]) -> Iterator[tuple[Cause, list[Open]]]:
    """Open verdicts, worst first, by the nights between which they began; by judge if the first is not known."""
    groups: dict[tuple[object, ...], list[Open]] = {}
    red = {_window(opened) for opened in verdicts if opened.verdict.status == "regressed" and opened.good is not None}
    for opened in verdicts:
        window = _window(opened)
        is_red = window in red and opened.verdict.judge != "presence" and "shared" not in opened.verdict.policy
        key = ("regressed", window) if is_red else (opened.verdict.status, opened.verdict.judge, window)
        groups.setdefault((opened.row, *key), []).append(opened)
    for group in groups.values():
        group.sort(key=lambda opened: (opened.verdict.status != "regressed", opened.verdict.judge != "convergence"))
        worst, told = group[0], dict[str, str]()
        for opened in group:
            told.setdefault(opened.verdict.judge, opened.verdict.explanation)
        status: Kind = "regressed" if worst.verdict.status == "regressed" else "cannot_tell"
        cause = Cause(
            kind=status,
            title=_title([opened.verdict for opened in group], "regressed" if status == "regressed" else "cannot tell"),
            explanation="\n".join(told.values()),
            verdicts=tuple(opened.verdict for opened in group),
            since=worst.since.id,
            good=None if worst.good is None else worst.good.id,
            nights=max(opened.nights for opened in group),
            changes=tuple(dict.fromkeys(change for opened in group for change in opened.changes)),
            knows_packages=all(opened.knows_packages for opened in group),
            in_git=worst.since.git_sha is not None,
        )
        yield cause, group


def _window(opened: Open) -> tuple[str | None, str]:
    return None if opened.good is None else opened.good.id, opened.since.id


def _title(verdicts: Sequence[Verdict], status: str) -> str:
    series = list(dict.fromkeys(verdict.series for verdict in verdicts))
    if len(series) == 1:
        shared = verdicts[0].policy.get("shared")
        return f"{f'all {shared} series like ' * bool(shared)}{series[0]}: {status}"
    cells = len({verdict.cell for verdict in verdicts})
    tests = [number for verdict in verdicts if isinstance(number := verdict.policy.get("tests"), int)]
    others = len(series) - len(tests)
    parts = [f"{others} series"] * bool(others) + [f"{sum(tests):,} tests"] * bool(tests)
    return f"{' and '.join(parts)} of {count(cells, 'cell')}: {status}"
