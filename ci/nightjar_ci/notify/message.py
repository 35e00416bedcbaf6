"""The message about a night, as markdown for GitHub.

In: a night, its exit code and its causes. Out: a text with the causes, red first. Text from jobs is shown literally: it
pings nobody, links nowhere and is not markup.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nightjar_ci.causes.causes import Cause, Kind
from nightjar_ci.causes.tonight import gather_causes
from nightjar_ci.errors import ExitCode, InputError
from nightjar_ci.formats.night_folder import Night
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.verdict import describe_exit, read_verdicts
from nightjar_ci.gate.gate import find_exit_code
from nightjar_ci.judges.finding import count
from nightjar_ci.report.markdown import escape
from nightjar_ci.settings import Settings
from nightjar_ci.store import open_store
from nightjar_ci.untrusted.terminal import show_controls

ICONS: dict[Kind, str] = {"failed": "🔴", "regressed": "🔴", "cannot_tell": "🟡", "improved": "🔵"}
MOST_CAUSES, MOST_SERIES, MOST_CHARACTERS = 10, 20, 60_000  # GitHub takes 65,536
_PING = re.compile(r"([@#])(?=\w)")
_LINK = re.compile(
    r"((?:https?|ftp)(?=://)|(?:mailto|xmpp)(?=:)|\bwww(?=\.)|\bgh(?=-\d))", re.IGNORECASE
)  # made by GitHub

State = Literal["ok", "red", "cannot_tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The content of a message about a night.

    Attributes:
        causes: of the verdicts that are not ok, red first.
        report: address of its report; empty if it has none.
    """

    night: Night
    exit_code: int
    exit_text: str
    causes: tuple[Cause, ...]
    report: str = ""

    @property
    def state(self) -> State:
        if self.exit_code == ExitCode.OK:
            return "ok"
        if self.exit_code == ExitCode.CANNOT_TELL:
            return "cannot_tell"
        return "red"

    @property
    def marker(self) -> str:
        return f"<!-- nightjar: {re.sub(r'[^A-Za-z0-9._-]+', '-', self.night.matrix)} -->"

    @property
    def headline(self) -> str:
        return f"Nightjar, {self.night.matrix}: {self.exit_text}"


def render_markdown(message: Message) -> str:
    """The message for a comment or an issue; it begins with its marker."""
    night = message.night
    icon = {"ok": "🟢", "red": "🔴", "cannot_tell": "🟡"}[message.state]
    about = f"Night `{night.id}`, {count(len(night.jobs), 'job')}, exit code {message.exit_code}"
    if night.git is not None:
        about += f", commit {quiet(night.git.sha[:12])}"
    lines = [message.marker, f"## {icon} {quiet(message.headline)}", "", f"{about}."]
    if message.report:
        lines[-1] += f" [Report]({message.report})."
    for cause in message.causes[:MOST_CAUSES]:
        lines += ["", *_render_cause(cause)]
    if len(message.causes) > MOST_CAUSES:
        lines += ["", f"{len(message.causes) - MOST_CAUSES} more are in the report."]
    text = "\n".join(lines) + "\n"
    if len(text) > MOST_CHARACTERS:
        text = text[:MOST_CHARACTERS] + "\n\n(cut: the report has the rest)\n"
    return text


def quiet(text: str) -> str:
    """Text from jobs on one line of markdown: literal, and without mentions of people or issues.

    >>> quiet("<b>@org/team</b> #1 *x*").replace("\\u200b", "|")
    '&lt;b&gt;@|org/team&lt;/b&gt; #|1 \\\\*x\\\\*'
    """
    # A character without width keeps mentions and addresses from becoming links.
    return _LINK.sub("\\1\u200b", _PING.sub("\\1\u200b", escape(show_controls(text))))


def _render_cause(cause: Cause) -> list[str]:
    lines = [f"### {ICONS[cause.kind]} {quiet(cause.title)}", "", quiet(cause.explanation), ""]
    if cause.kind != "improved":
        lines += [f"- **since:** {quiet(cause.when)}", f"- **what changed:** {quiet(cause.what_changed)}"]
    if cause.command and "```" not in cause.command and cause.command.isprintable():
        lines += ["- **run:**", "  ```sh", f"  {cause.command}", "  ```"]
    if len(cause.verdicts) > 1:
        names = [f"- {quiet(verdict.series)} ({verdict.judge})" for verdict in cause.verdicts[:MOST_SERIES]]
        if len(cause.verdicts) > MOST_SERIES:
            names.append(f"- and {len(cause.verdicts) - MOST_SERIES} more")
        lines += ["", f"<details><summary>{len(cause.verdicts)} series</summary>", "", *names, "", "</details>"]
    return lines


def read_message(folder: Path, policies: Path, settings: Settings, report: str = "") -> Message:
    """The message about a night.

    Args:
        policies: the policies file; the matrix is looked up in its folder.
        settings: they name the store of earlier nights.
    """
    results, judged = read_night_results(folder), folder / "verdicts.json"
    if not judged.exists():
        raise InputError(f"{folder}: the night has not been judged.", f"nightjar-ci gate {folder}")
    verdicts = read_verdicts(judged)
    exit_code = find_exit_code(results, verdicts)
    return Message(
        night=results.night,
        exit_code=exit_code,
        exit_text=describe_exit(
            exit_code,
            verdicts.verdicts,
            not_run=len(results.night.not_run),
            cut=sum(suite.cut for suite in results.read_suites().values()),
        ),
        causes=gather_causes(results, verdicts, open_store(settings), policies),
        report=report,
    )
