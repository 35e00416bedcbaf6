"""Sending of messages about a night: only to the requested channels, and once each.

In: a message, the requested channels, the settings. Out: one line for each channel. A channel that fails does not stop
the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.notify.github import GitHub
from nightjar_ci.notify.message import Message
from nightjar_ci.settings import Settings

Send = Callable[[Message], str]


def plan_sending(
    settings: Settings, *, check: str | None = None, pull_request: int | None = None, issue: bool = False
) -> list[Send]:
    """The channels of a message: a check on a commit, a comment on a pull request, an issue while it is red."""
    if check is None and pull_request is None and not issue:
        expected = "expected one of --check, --pull-request, --issue"
        raise InputError(f"nothing to send: {expected}.", "each is off unless it is named")
    github, sends = _find_github(settings), list[Send]()
    if check is not None:
        sends.append(partial(github.put_check, sha=check))
    if pull_request is not None:
        sends.append(partial(github.put_comment, pull_request=pull_request))
    if issue:
        sends.append(github.track_issue)
    return sends


def _find_github(settings: Settings) -> GitHub:
    if settings.github_token is None:
        raise InputError("GITHUB_TOKEN is not set.", "in a workflow: env: { GITHUB_TOKEN: ${{ github.token }} }")
    repository = settings.github_repository
    if repository is None or not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise InputError(f"GITHUB_REPOSITORY is {repository!r}: expected OWNER/NAME.")
    return GitHub(repository=repository, token=settings.github_token, api_url=settings.github_api_url)


def send_all(message: Message, sends: list[Send]) -> tuple[list[str], list[NightjarError]]:
    """Sends a message to every channel; returns the actions and the failures."""
    done: list[str] = []
    failed: list[NightjarError] = []
    for send in sends:
        try:
            done.append(send(message))
        except NightjarError as error:
            failed.append(error)
    return done, failed
