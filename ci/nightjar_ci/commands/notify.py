"""`nightjar-ci notify`: tells people about a judged night."""

from __future__ import annotations

from typing import Annotated

import typer

from nightjar_ci.commands.options import Night


def command(
    night: Night,
    pull_request: Annotated[
        int | None,
        typer.Option(min=1, help="GitHub pull request to comment on: once, updated; none where all was well so far."),
    ] = None,
    issue: Annotated[
        bool, typer.Option("--issue", help="GitHub issue: opened when the night is red, closed when all is well.")
    ] = False,
    report: Annotated[str, typer.Option(help="Address of the report, to link to.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the message and send nothing.")] = False,
) -> None:
    """Tell people about a night on GitHub: comment or issue.

    Nothing is sent unless it is named. It takes $GITHUB_TOKEN and $GITHUB_REPOSITORY, as a workflow sets them.

    Example: nightjar-ci notify .nightjar/nights/2026-11-21T0300-1a2b --issue --dry-run
    """
    from nightjar_ci.errors import InputError, NightjarError
    from nightjar_ci.formats.project_files import find_policies
    from nightjar_ci.notify.github import plan_sending, send_all
    from nightjar_ci.notify.message import read_message, render_markdown
    from nightjar_ci.settings import read_settings

    settings = read_settings()
    if report and not report.startswith(("https://", "http://")):
        raise InputError(f"--report: {report!r} is not an http or https address.")
    message = read_message(night, find_policies(None), settings, report)
    if dry_run:
        typer.echo(render_markdown(message), nl=False)
        return
    sends = plan_sending(settings, pull_request=pull_request, issue=issue)
    done, failed = send_all(message, sends)
    for line in done:
        typer.echo(line)
    if failed:
        text = " ".join(error.message for error in failed)
        raise NightjarError(text, next((error.hint for error in failed if error.hint), None))
