"""The status of all nights: open verdicts, when they began, and changes from night to night.

In: stored nights, oldest first. Out: a `Status`: rows of comparable nights (a matrix in an environment on devices), the
open verdicts in the latest night of each row, and the changes from one night to the next. All functions are pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from nightjar_ci.environments.project import is_project
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.run_record import Environment
from nightjar_ci.formats.suite import SUITE
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.gate.reruns import EnvironmentOf
from nightjar_ci.store.nights import Judged, StoredNight

Answer = Literal["ok", "regressed", "failed", "cannot_tell", "not_judged", "unfinished"]
ANSWER_TEXT: dict[Answer, str] = {
    "failed": "a job failed",
    "regressed": "regressed",
    "unfinished": "not finished",
    "cannot_tell": "cannot tell",
    "not_judged": "not judged",
    "ok": "ok",
}
WORST_FIRST: tuple[Answer, ...] = ("failed", "regressed", "unfinished", "cannot_tell", "not_judged", "ok")
RETIRED_AFTER = timedelta(days=8)  # a row that runs once a week, and a day of slack


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Nights that are compared with each other: one matrix in one kind of environment.

    Attributes:
        name: of the row, usable as a file name.
        environment: `current`, a repository of images without tag, or a uv environment without versions.
        nights: oldest first, with the answer of each.
    """

    name: str
    matrix: str
    environment: str
    devices: str
    nights: tuple[tuple[StoredNight, Answer], ...]

    @property
    def latest(self) -> StoredNight:
        return self.nights[-1][0]

    @property
    def answer(self) -> Answer:
        return self.nights[-1][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A verdict in the latest night of a row that is regressed or cannot tell.

    Attributes:
        since: the first bad night, as named by the judge; otherwise the first of the consecutive nights with this
            status.
        good: the last good night, as named by the judge; otherwise the night before `since`, or None.
        nights: number of bad nights in the row.
        changes: differences between the good night and `since`: packages and commit.
        knows_packages: whether both nights recorded them.
    """

    row: str
    night: StoredNight
    verdict: Verdict
    since: StoredNight
    good: StoredNight | None
    nights: int
    changes: tuple[str, ...]
    knows_packages: bool

    @property
    def is_bisectable(self) -> bool:
        has_good = self.good is not None
        return is_bisectable(self.verdict, good=has_good, changes=self.changes, environment=self.night.environment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A series that became red in a night, or is red no longer: mended, or accepted."""

    row: str
    night: StoredNight
    series: str
    judge: str
    kind: Literal["regressed", "recovered"]
    verdict: Verdict | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The contents of the status page; events are newest first, `not_run` are rows whose latest night lacks jobs.

    Only `current` rows count for the answer, and only they have open verdicts, failed jobs and jobs that did not run.
    """

    rows: tuple[Row, ...]
    current: tuple[Row, ...]
    open: tuple[Open, ...]
    failed: tuple[tuple[Row, Outcome], ...]
    not_run: tuple[Row, ...]
    events: tuple[Event, ...]

    @property
    def answer(self) -> Answer:
        return min((row.answer for row in self.current), key=WORST_FIRST.index, default="not_judged")

    @property
    def nights(self) -> tuple[tuple[Row, StoredNight, Answer], ...]:
        nights = [(row, night, answer) for row in self.rows for night, answer in row.nights]
        return tuple(sorted(nights, key=lambda entry: (entry[1].started_at, entry[1].id), reverse=True))


def read_status(nights: Sequence[StoredNight], environment_of: EnvironmentOf = lambda cell, night: None) -> Status:
    groups: dict[tuple[str, str, str], list[StoredNight]] = {}
    for night in nights:
        key = (night.matrix, describe_environment(night.environment), night.devices or "unknown devices")
        groups.setdefault(key, []).append(night)
    rows = tuple(
        Row(
            name=re.sub(r"[^A-Za-z0-9._]+", "-", "-".join(key)).strip("-").lower(),
            matrix=key[0],
            environment=key[1],
            devices=key[2],
            nights=tuple((night, find_answer(night)) for night in row_nights),
        )
        for key, row_nights in groups.items()
    )
    rows = tuple(sorted(rows, key=lambda row: (WORST_FIRST.index(row.answer), row.matrix, row.name)))
    current = tuple(row for row in rows if is_current(row, rows))
    events = [event for row in rows for event in find_events(row)]
    return Status(
        rows=rows,
        current=current,
        open=tuple(opened for row in current for opened in find_open(row, environment_of)),
        failed=tuple((row, outcome) for row in current for outcome in row.latest.failed),
        not_run=tuple(row for row in current if row.latest.finished_at is not None and row.latest.not_run),
        events=tuple(sorted(events, key=lambda event: (event.night.started_at, event.series), reverse=True)),
    )


def is_current(row: Row, rows: Sequence[Row]) -> bool:
    """Whether no later night of its matrix stands for this row.

    For nights without a result, whose machine is not known, any later one in their environment does; for a one-off or
    a machine that is gone, one that is more than a week younger.
    """
    for other in rows:
        if other.matrix != row.matrix:
            continue
        later = datetime.fromisoformat(other.latest.started_at) - datetime.fromisoformat(row.latest.started_at)
        is_alike = row.latest.devices is None and row.environment in ("unknown", other.environment)
        if later > (timedelta() if is_alike else RETIRED_AFTER):
            return False
    return True


def find_answer(night: StoredNight) -> Answer:
    """One word for a night.

    An unfinished night is never ok: it is still running, or it was killed.
    """
    if night.finished_at is None:
        return "unfinished"
    if night.failed or not night.ran:
        return "failed"
    statuses = list(night.statuses.values())
    if "regressed" in statuses:
        return "regressed"
    if night.not_run or "cannot_tell" in statuses:
        return "cannot_tell"
    if not statuses:
        return "not_judged"
    return "ok"


def is_bisectable(verdict: Verdict, *, good: bool, changes: Sequence[str], environment: str | None) -> bool:
    """Whether `bisect --verdict` has two ends; without a good night, it looks for one for tests of a project alone."""
    if good:
        return bool(changes)
    return verdict.judge == "tests" and environment is not None and is_project(environment)


def find_open(row: Row, environment_of: EnvironmentOf = lambda cell, night: None) -> list[Open]:
    """The open verdicts in the latest night of a row, worst first, and what changed in their cells when they began."""
    verdicts = []
    for verdict in row.latest.loud:
        if verdict.status not in ("regressed", "cannot_tell"):
            continue
        good, since, count = _find_window(row, verdict)
        changes, knows_packages = tuple[str, ...](), False
        if good is not None:
            then, now = (environment_of(verdict.cell, night.id) for night in (good, since))
            sides = (then, now) if then and now else (good, since)
            changes = tuple(find_changes(good, since, *sides))
            knows_packages = all(side.packages for side in sides)
        opened = Open(
            row=row.name,
            night=row.latest,
            verdict=verdict,
            since=since,
            good=good,
            nights=count,
            changes=changes,
            knows_packages=knows_packages,
        )
        verdicts.append(opened)
    return verdicts


def _find_window(row: Row, verdict: Verdict) -> tuple[StoredNight | None, StoredNight, int]:
    """The last good night and the first bad night of a verdict, and the number of bad nights.

    The history judge names the first bad night of a regression that it detects later: its cause is there. So
    does the judge of absent series, which may have come back before. A test that fails for the first time names none.
    """
    good_night, since = (verdict.policy.get(key) for key in ("good_night", "since"))
    since, ids = since or row.latest.id, [night.id for night, _ in row.nights]
    first_bad = ids.index(since) if since in ids else sum(night_id < str(since) for night_id in ids)
    if verdict.status == "regressed" and isinstance(good_night, str):
        last_good = ids.index(good_night) if good_night in ids else sum(name <= good_night for name in ids) - 1
    elif verdict.judge == "presence":
        last_good = first_bad - 1
    else:
        return _find_consecutive(row, verdict)
    good = row.nights[last_good][0] if last_good >= 0 else None
    return good, row.nights[min(first_bad, len(ids) - 1)][0], len(ids) - first_bad


def _find_consecutive(row: Row, verdict: Verdict) -> tuple[StoredNight | None, StoredNight, int]:
    """The same for a verdict that names no nights: those in a row that have its status."""
    first, count, before = row.latest, 0, None
    for night, _ in reversed(row.nights):
        status = night.statuses.get((verdict.series, verdict.judge))
        if status is None and verdict.judge == "tests" and "::" not in str(verdict.policy.get("node")):
            status = night.statuses.get((f"{verdict.cell}/{SUITE}", "tests"))  # a file that could be imported then
        if status is None:
            continue  # not judged that night
        is_own_fault = verdict.judge == "facts" or "fault" in verdict.policy  # seen without a baseline, too
        if verdict.status == "regressed" and status == "cannot_tell" and not is_own_fault:
            continue  # not a good night
        if status != verdict.status:
            before = night
            break
        first, count = night, count + 1
    return before, first, count


def find_events(row: Row) -> list[Event]:
    """The events of a row, oldest first. *Cannot tell* ends nothing and begins nothing."""
    regressed: dict[Judged, bool] = {}
    events = []
    for night, _ in row.nights:
        loud: dict[Judged, Verdict] = {(verdict.series, verdict.judge): verdict for verdict in night.loud}
        for key, status in sorted(night.statuses.items()):
            if status == "cannot_tell":
                continue
            now, before = status == "regressed", regressed.get(key, False)
            regressed[key] = now
            if now != before:
                kind: Literal["regressed", "recovered"] = "regressed" if now else "recovered"
                verdict = loud.get(key)
                events.append(Event(row=row.name, night=night, series=key[0], judge=key[1], kind=kind, verdict=verdict))
    return events


def find_changes(
    before: StoredNight, after: StoredNight, old_side: Environment | StoredNight, new_side: Environment | StoredNight
) -> Iterator[str]:
    """The differences between the environments of two nights: packages by name, Python, then the commit."""
    for name in sorted({*old_side.packages, *new_side.packages}, key=str.lower):
        old, new = old_side.packages.get(name), new_side.packages.get(name)
        if old != new and old_side.packages and new_side.packages:
            yield f"{name} {old or 'absent'} -> {new or 'absent'}"
    if old_side.python is not None and new_side.python is not None and old_side.python != new_side.python:
        yield f"Python {old_side.python} -> {new_side.python}"
    if before.git_sha is not None and after.git_sha is not None and before.git_sha != after.git_sha:
        yield f"commit {before.git_sha[:12]} -> {after.git_sha[:12]}"


def describe_environment(environment: str | None) -> str:
    """An environment without the parts that change from night to night: a tag's date, a digest, versions.

    >>> describe_environment("image:ghcr.io/owner/nightjar:models-2026-11-21")
    'ghcr.io/owner/nightjar:models'
    >>> describe_environment("uv:jax==0.10.2"), describe_environment(None)
    ('uv:jax', 'unknown')
    """
    if environment is None:
        return "unknown"
    kind, _, rest = environment.partition(":")
    if kind == "image":
        return re.sub(r"([-_.]?\d{4}-\d{2}-\d{2})?(@sha256:\w+)?$", "", rest)
    return re.sub(r"[=<>!~]=?[^,; ]+", "", environment)
