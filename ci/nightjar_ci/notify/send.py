"""Sending of messages about a night: only to the requested channels, and once each.

In: a message, the requested channels, the settings. Out: one line for each channel. A channel that fails does not stop
the others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.notify.github import GitHub
from nightjar_ci.notify.message import Message, render_chat
from nightjar_ci.settings import Settings
from nightjar_ci.web.http import HttpError, request

Send = Callable[[Message], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """The channels of a message.

    Attributes:
        check: a check on this commit; None for none.
        pull_request: a comment on the pull request of that number; None for none.
        issue: an issue that is open while the matrix is red.
    """

    check: str | None = None
    pull_request: int | None = None
    issue: bool = False
    webhook: bool = False


def plan_sending(channels: Channels, settings: Settings) -> list[Send]:
    sends: list[Send] = []
    github = None
    if channels.check is not None or channels.pull_request is not None or channels.issue:
        github = _find_github(settings)
    if github is not None:
        if channels.check is not None:
            sha = channels.check
            sends.append(lambda message: github.put_check(message, sha))
        if channels.pull_request is not None:
            number = channels.pull_request
            sends.append(lambda message: github.put_comment(message, number))
        if channels.issue:
            sends.append(github.track_issue)
    if channels.webhook:
        url = settings.webhook_url
        if url is None:
            raise InputError("--webhook: NIGHTJAR_WEBHOOK_URL is not set.", "it holds the address of the webhook")
        sends.append(lambda message: send_chat(message, url))
    if not sends:
        expected = "expected one of --check, --pull-request, --issue, --webhook"
        raise InputError(f"nothing to send: {expected}.", "each is off unless it is named")
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


def send_chat(message: Message, url: str) -> str:
    """Sends the message, if it is news."""
    if not message.is_news:
        return "webhook: nothing new to say"
    try:
        host = urlsplit(url).hostname or "the address"
    except ValueError:
        raise NightjarError("webhook: the address is not a valid URL.", "check NIGHTJAR_WEBHOOK_URL") from None
    body = json.dumps(render_chat(message)).encode()
    try:
        request(url, method="POST", body=body, headers={"Content-Type": "application/json"})
    except HttpError as error:
        why = f"status {error.status}" if error.status else "it cannot be reached"
        raise NightjarError(f"webhook: {host}: {why}.", "check NIGHTJAR_WEBHOOK_URL") from None
    return f"webhook: sent to {host}"
