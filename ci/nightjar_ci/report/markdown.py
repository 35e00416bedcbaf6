"""The report of a night as markdown, for GitHub's job summary.

In: `Contents`. Out: markdown, with all text from jobs escaped.
"""

from __future__ import annotations

import html
import re

from nightjar_ci.causes.causes import Cause
from nightjar_ci.formats.suite import Suite
from nightjar_ci.formats.verdict import status_of
from nightjar_ci.judges.finding import count
from nightjar_ci.report.contents import MOST_CAUSES, Contents

_ICONS = {"regressed": "🔴", "cannot_tell": "🟡", "improved": "🔵", "ok": "🟢"}
_SPECIAL = re.compile(r"([\\`*_\[\]|~])")
MOST_OK = 20


def render_markdown(contents: Contents) -> str:
    """The summary: the answer, its causes, failed jobs, the verdicts worst first, the notes on unjudged series."""
    night = contents.night
    lines = [f"## Nightjar, {escape(night.matrix)}: {contents.exit_text}", ""]
    lines += [f"Night `{night.id}`, {count(len(night.jobs), 'job')}, exit code {contents.exit_code}.", ""]
    bad = [part.cause for part in contents.causes if part.cause.kind != "improved"]
    for cause in bad[:MOST_CAUSES]:
        lines += [*_render_cause(cause), ""]
    if contents.failed:
        lines += ["| job | state | message |", "|---|---|---|"]
        for failed in contents.failed:
            message = (failed.message or "").strip().partition("\n")[0][:200]
            lines.append(f"| {escape(failed.job)} | {failed.state} | {escape(message)} |")
        lines.append("")
    if contents.checked:
        lines += ["| job | versions | checked numbers | speed |", "|---|---|---|---|"]
        lines += [
            f"| {escape(part.job)} | {escape(part.versions)} | {len(part.numbers)} | {escape(part.speed or '')} |"
            for part in contents.checked
        ]
        lines.append("")
    if contents.suites:
        lines += ["| tests of | passed | failed | known failures | flaky | skipped | not run in time |"]
        lines += ["|---|---|---|---|---|---|---|"]
        lines += [_suite_row(cell, suite) for cell, suite in contents.suites]
        lines.append("")
    verdicts = contents.verdicts.verdicts
    if verdicts:
        lines += ["| verdict | series | judge | explanation |", "|---|---|---|---|"]
        shown = [v for v in verdicts if v.status != "ok"] + [v for v in verdicts if v.status == "ok"][:MOST_OK]
        for verdict in shown:
            status = f"{_ICONS[verdict.status]} {status_of(verdict)}"
            explanation = escape(verdict.explanation)
            lines.append(f"| {status} | {escape(verdict.series)} | {verdict.judge} | {explanation} |")
        lines.append("")
        if len(shown) < len(verdicts):
            lines += [f"{len(verdicts) - len(shown)} more are ok.", ""]
    lines += [f"- {escape(note)}" for note in contents.verdicts.notes]
    return "\n".join(lines).rstrip() + "\n"


def escape(text: str) -> str:
    return html.escape(_SPECIAL.sub(r"\\\1", " ".join(text.split())), quote=False)


def _render_cause(cause: Cause) -> list[str]:
    lines = [f"**{escape(cause.title)}**", f"- since: {escape(cause.when)}"]
    lines.append(f"- what changed: {escape(cause.what_changed)}")
    if cause.command and "`" not in cause.command and cause.command.isprintable():
        lines.append(f"- run: `{cause.command}`")
    return lines


def _suite_row(cell: str, suite: Suite) -> str:
    n_known = suite.count_known()
    numbers = (suite.count("failed") - n_known, n_known, suite.count("flaky"), suite.skipped, suite.cut)
    counts = " | ".join(f"{number:,}" for number in numbers)
    return f"| {escape(cell)} | {suite.passed:,}/{suite.ran:,} | {counts} |"
