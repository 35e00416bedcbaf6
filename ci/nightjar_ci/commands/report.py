"""`nightjar-ci report`: renders the report of a night, judged before or judged now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nightjar_ci.commands.options import Baselines, Night, Policies

Summary = Annotated[
    Path | None, typer.Option(help="Also append summary.md to this file, such as $GITHUB_STEP_SUMMARY.")
]


def append_summary(path: Path | None, night: Path) -> None:
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write((night / "summary.md").read_text(encoding="utf-8"))


def command(
    night: Night,
    policies: Policies = None,
    baselines: Baselines = None,
    summary: Summary = None,
) -> None:
    """Render the report of a night.

    Writes report.html, junit.xml and summary.md into the night folder; the last line of stdout is the path
    of report.html. A night without verdicts.json is judged first.

    Example: nightjar-ci report .nightjar/nights/2026-11-21T0300-1a2b
    """
    from nightjar_ci.causes.tonight import gather_causes
    from nightjar_ci.formats.night_results import read_night_results
    from nightjar_ci.formats.policy import read_policies
    from nightjar_ci.formats.project_files import find_baselines, find_policies
    from nightjar_ci.formats.verdict import read_verdicts
    from nightjar_ci.gate.advice import render_confirm
    from nightjar_ci.gate.gate import gate_night
    from nightjar_ci.report.contents import gather
    from nightjar_ci.report.write import write_reports
    from nightjar_ci.settings import read_settings
    from nightjar_ci.store import open_store

    policies, baselines = find_policies(policies), find_baselines(baselines)
    settings = read_settings()
    numbers, store = read_policies(policies), open_store(settings)
    results = read_night_results(night)
    judged = night / "verdicts.json"
    if judged.exists():
        verdicts = read_verdicts(judged)
    else:
        command = render_confirm(night, policies, baselines)
        verdicts = gate_night(results, numbers, baselines, store, command, settings.nights_dir)
    causes = gather_causes(results, verdicts, store, policies)
    page = write_reports(night, gather(results, verdicts, numbers, baselines, store, causes))
    append_summary(summary, night)
    typer.echo(page)
