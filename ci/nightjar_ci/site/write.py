"""The folder of the status page, with the reports and badges that it links to.

In: the store, and folders of nights and bisections. Out: `index.html`, `status.json`, `badges/`, the histories of each
row in `series/`, and the reports of the latest nights. The folder needs no server: every link is relative.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cache
from html import escape
from itertools import chain
from pathlib import Path

from nightjar_ci.baselines.accepted import read_accepted
from nightjar_ci.bisect.result.answer import Answer as Bisection
from nightjar_ci.causes.status import ANSWER_TEXT, Answer, Row, Status, read_status
from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.formats.documents import read_document, write_text
from nightjar_ci.formats.project_files import find_baselines
from nightjar_ci.formats.series import Series
from nightjar_ci.images.publish.index_store import open_index
from nightjar_ci.images.publish.support import Support, describe_support
from nightjar_ci.settings import Settings
from nightjar_ci.site.histories import render_histories
from nightjar_ci.site.html import Page, render_html
from nightjar_ci.store import Store, open_store
from nightjar_ci.store.folder import find_night_folders, import_missing
from nightjar_ci.untrusted.files import MOST_DATA_BYTES, read_untrusted

WINDOW = 400  # nights at most that are shown
_AHEAD_S = 24 * 3600  # a clock that is further ahead is wrong, and its night would stand for all later ones
_REPORTS = ("report.html", "jobs/*/capture/report.html", "explain*/diff/difference.html")

LETTER_WIDTH = 6.6  # of an 11 px sans-serif, on average, measured in Chromium
PADDING = 12

COLOURS: dict[Answer, str] = {
    "ok": "#237a3c",
    "regressed": "#c92a2a",
    "failed": "#b5480a",
    "unfinished": "#b5480a",
    "cannot_tell": "#8a6100",
    "not_judged": "#5b6577",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The inputs of the page, besides the store.

    Attributes:
        nights: a folder of night folders; nights that the store lacks are imported with their verdicts.
        reports: largest number of reports to publish; the latest ones.
        images: the repository or the nightly index whose support matrix is shown; empty for none.
    """

    nights: Path
    bisections: Path
    reports: int = 30
    images: str = ""


def write_site(out: Path, settings: Settings, sources: Sources) -> tuple[Path, Status]:
    """Writes the folder; files of an earlier call that are still current stay.

    Returns: the path of `index.html`, and its status.
    """
    support, missing = read_support(sources.images)
    folders = find_night_folders(sources.nights)
    store = open_store(settings)
    try:
        import_missing(store, folders)
        nights, now = [], datetime.now(UTC).timestamp()
        for night in store.latest_nights(window=WINDOW):
            if 0 < datetime.fromisoformat(night.started_at).timestamp() < now + _AHEAD_S:
                nights.append(night)
            else:
                print(f"warning: night {night.id} is left out: it begins at {night.started_at}", file=sys.stderr)
        status = read_status(nights, cache(store.environment_of))
        histories, cut = _read_latest(store, status)
    finally:
        store.close()
    latest = [night.id for _, night, _ in status.nights if night.id in folders][: sources.reports]
    published = [name for name in latest if _publish(folders[name], out / "nights" / name)]
    reports = {name: f"nights/{name}/report.html" for name in published}
    bisections = list(_publish_bisections(sources.bisections, out / "bisections"))
    verdicts = {name: str(folder / "verdicts.json") for name, folder in folders.items()}
    page = Page(
        status=status,
        reports=reports,
        verdicts=verdicts,
        bisections=tuple(bisections),
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        cut=cut,
        false_alarms=_count_false_alarms(status),
        support=support,
        support_missing=missing,
    )
    for row in status.rows:
        write_text(out / "series" / f"{row.name}.html", render_histories(row, histories[row.name], reports))
        write_text(out / "badges" / f"{row.name}.svg", render_svg(row.matrix, row.answer, row.latest.started_at))
    matrices = {row.matrix for row in status.rows}
    label = "nightly"
    if len(matrices) == 1:
        (label,) = matrices
    oldest = min((row.latest.started_at for row in status.current), default="")
    write_text(out / "badges" / "all.svg", render_svg(label, status.answer, oldest))
    write_text(out / "status.json", render_status(page))
    write_text(out / "index.html", render_html(page))
    return out / "index.html", status


def _count_false_alarms(status: Status) -> int:
    """The regressions of these nights that were accepted as false alarms, in the project's committed files."""
    oldest = min((night.id for _, night, _ in status.nights), default="")
    entries = chain.from_iterable(read_accepted(find_baselines(None)).values())
    return sum(entry.false_alarm and entry.night >= oldest for entry in entries)


def _read_latest(store: Store, status: Status) -> tuple[dict[str, list[Series]], int]:
    """The series of the latest night of each row, and the series that it lacks and was judged for, by the row's name.

    Also the number of tests of these nights that had no time to run.
    """
    histories = {
        row.name: [
            *(series := store.series_before(row.latest.id, window=WINDOW)),
            *_find_absent(store, row, series),
        ]
        for row in status.rows
    }
    return histories, sum(store.count_cut(row.latest.id) for row in status.rows)


def _find_absent(store: Store, row: Row, series: Sequence[Series]) -> Iterator[Series]:
    """The series that the latest night of a row was judged for and does not have, such as one that has vanished."""
    measured, nights = {entry.name for entry in series}, {night.id for night, _ in row.nights}
    for name in sorted({name for name, _ in row.latest.statuses} - measured):
        absent = store.one_series(name)
        if absent is None:
            continue
        kept = [place for place, night in enumerate(absent.nights) if night in nights]
        if kept:
            yield replace(
                absent,
                nights=tuple(absent.nights[place] for place in kept),
                values=absent.values[kept],
                environments=tuple(absent.environments[place] for place in kept),
            )


def read_support(images: str) -> tuple[tuple[Support, ...], str]:
    """The support matrix of a repository or an index, or the reason why there is none.

    If the registry does not answer, the page shows the nights without it.
    """
    if not images:
        return (), ""
    try:
        support = describe_support(open_index(images))
    except InputError:
        raise
    except NightjarError as error:
        print(f"warning: no support matrix: {error}", file=sys.stderr)
        return (), f"The registry of the images could not be read: {error.message}"
    if not support:
        return (), f"{images} has no published nightly image yet."
    return support, ""


def render_status(page: Page) -> str:
    """The status for programs: `nightjar.status/1`."""
    status = page.status
    document = {
        "schema": "nightjar.status/1",
        "made_at": page.made_at,
        "answer": status.answer,
        "rows": [
            {
                "name": row.name,
                "matrix": row.matrix,
                "place": row.environment,
                "devices": row.devices,
                "answer": row.answer,
                "current": row in status.current,
                "nights": [
                    {
                        "id": night.id,
                        "started_at": night.started_at,
                        "answer": answer,
                        "report": page.reports.get(night.id),
                    }
                    for night, answer in row.nights
                ],
            }
            for row in status.rows
        ],
        "open": [
            {
                "row": opened.row,
                "since": opened.since.id,
                "good_night": opened.good.id if opened.good is not None else None,
                "nights": opened.nights,
                "changes": opened.changes,
                "verdict": opened.verdict.document,
            }
            for opened in status.open
        ],
        "failed": [
            {"row": row.name, "night": row.latest.id, "outcome": outcome.model_dump(mode="json")}
            for row, outcome in status.failed
        ],
        "not_run": [{"row": row.name, "night": row.latest.id, "jobs": row.latest.not_run} for row in status.not_run],
        "support": [asdict(row) for row in page.support],
    }
    return json.dumps(document, indent=1) + "\n"


def _publish(folder: Path, out: Path) -> Sequence[Path]:
    """Copies the reports of a night or a bisection, unless those are current; returns the published files."""
    reports = [path for pattern in _REPORTS for path in sorted(folder.glob(pattern))]
    return [path for path in reports if _copy(folder, path.relative_to(folder), out)]


def _copy(folder: Path, name: Path, out: Path) -> bool:
    """Copies a file that a job may have written, unless the copy is current; returns whether it is published."""
    target = out / name
    try:
        if not target.exists() or target.stat().st_mtime < (folder / name).lstat().st_mtime:
            data = read_untrusted(folder.resolve(), name, MOST_DATA_BYTES)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    except OSError as error:
        print(f"warning: {folder / name} is not published: {error.strerror or error}", file=sys.stderr)
        target.unlink(missing_ok=True)
        return False
    return True


def _publish_bisections(folder: Path, out: Path) -> Iterator[tuple[Bisection, str]]:
    """Answers with the addresses of their pages, newest first; an unfinished bisection has none."""
    paths = sorted(folder.glob("*/answer.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in paths:
        page = path.parent / "report.html"
        try:
            answer = read_document(path, Bisection, "nightjar.answer/1")
        except InputError:
            continue  # of another version
        if page.is_file() and _publish(path.parent, out / path.parent.name):
            yield answer, f"bisections/{path.parent.name}/report.html"


def render_svg(label: str, answer: Answer, started_at: str) -> str:
    message = f"{ANSWER_TEXT[answer]} {started_at[:10]}".rstrip()  # a badge does not notice that nights stopped
    left, right = (round(PADDING + LETTER_WIDTH * len(text)) for text in (label, message))
    description = escape(f"{label}: {message}")
    texts = "".join(
        f'<text x="{middle:g}" y="14" text-anchor="middle">{escape(text)}</text>'
        for text, middle in ((label, left / 2), (message, left + right / 2))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{description}"><title>{description}</title>'
        f'<clipPath id="round"><rect width="{left + right}" height="20" rx="3"/></clipPath>'
        f'<g clip-path="url(#round)"><rect width="{left}" height="20" fill="#3b4250"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{COLOURS[answer]}"/></g>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{texts}</g></svg>\n'
    )
