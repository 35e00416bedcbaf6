"""Writes the four reports of a night: `report.html`, `junit.xml`, `summary.md`, `badge.json`."""

from __future__ import annotations

from pathlib import Path

from nightjar_ci.formats.documents import write_text
from nightjar_ci.report.badge import render_badge
from nightjar_ci.report.contents import Contents
from nightjar_ci.report.html import render_html
from nightjar_ci.report.junit import render_junit
from nightjar_ci.report.markdown import render_markdown


def write_reports(folder: Path, contents: Contents) -> Path:
    """Writes them into a night folder and returns the path of `report.html`."""
    causes = [card.cause for card in contents.causes]
    write_text(folder / "junit.xml", render_junit(contents.night, contents.verdicts, causes))
    write_text(folder / "summary.md", render_markdown(contents))
    suites = [suite for _, suite in contents.suites]
    badge = render_badge(
        contents.night.matrix, contents.exit_code, contents.verdicts.verdicts, len(contents.failed), suites
    )
    write_text(folder / "badge.json", badge)
    write_text(folder / "report.html", render_html(contents))
    return folder / "report.html"
