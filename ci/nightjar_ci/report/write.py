"""The three reports of a night: `report.html`, `junit.xml`, `summary.md`."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

from nightjar_ci.causes.causes import Cause
from nightjar_ci.formats.documents import write_text
from nightjar_ci.formats.night_folder import Night
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.verdict import NightVerdicts, Verdict
from nightjar_ci.report.contents import Contents
from nightjar_ci.report.html import render_html
from nightjar_ci.report.markdown import render_markdown

_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, production 2


def write_reports(folder: Path, contents: Contents) -> Path:
    """Writes them into a night folder and returns the path of `report.html`."""
    causes = [card.cause for card in contents.causes]
    write_text(folder / "junit.xml", render_junit(contents.night, contents.verdicts, causes))
    write_text(folder / "summary.md", render_markdown(contents))
    write_text(folder / "report.html", render_html(contents))
    return folder / "report.html"


def render_junit(night: Night, verdicts: NightVerdicts, causes: Sequence[Cause] = ()) -> str:
    root = ElementTree.Element("testsuites", name=_clean(night.matrix))
    jobs = ElementTree.SubElement(root, "testsuite", name="jobs", timestamp=_clean(night.started_at))
    for outcome in night.jobs:
        _add_job(jobs, outcome)
    judged = ElementTree.SubElement(root, "testsuite", name="verdicts", timestamp=_clean(night.started_at))
    cause_of = {(verdict.series, verdict.judge): cause for cause in reversed(causes) for verdict in cause.verdicts}
    for verdict in verdicts.verdicts:
        _add_verdict(judged, verdict, cause_of.get((verdict.series, verdict.judge)))
    for suite in (jobs, judged):
        suite.set("tests", str(len(suite)))
        for key, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(key, str(len(suite.findall(f"testcase/{tag}"))))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add_job(suite: ElementTree.Element, outcome: Outcome) -> None:
    seconds = f"{outcome.duration_s:.3f}"
    case = ElementTree.SubElement(suite, "testcase", classname=_clean(outcome.cell), name=_clean(outcome.job))
    case.set("time", seconds)
    if not outcome.completed:
        message = _clean(outcome.message or outcome.state)
        error = ElementTree.SubElement(case, "error", type=outcome.state, message=message.partition("\n")[0])
        error.text = message


def _add_verdict(suite: ElementTree.Element, verdict: Verdict, cause: Cause | None) -> None:
    name = _clean(f"{verdict.series} ({verdict.judge})")
    case = ElementTree.SubElement(suite, "testcase", classname=_clean(verdict.cell), name=name)
    text = _clean(verdict.explanation)
    if verdict.status == "regressed":
        failure = ElementTree.SubElement(case, "failure", type=verdict.judge, message=text)
        why = [] if cause is None else [f"since: {cause.when}", f"what changed: {cause.what_changed}"]
        failure.text = "\n".join([text, *map(_clean, (*verdict.details, *why))])
    elif verdict.status == "cannot_tell":
        ElementTree.SubElement(case, "skipped", message=text)
    else:
        ElementTree.SubElement(case, "system-out").text = text


def _clean(text: str) -> str:
    """Text without the characters that XML cannot hold, such as the escape of terminal colours."""
    return _FORBIDDEN.sub("\ufffd", text)
