"""GitHub: a comment on a pull request, and an issue, each made once and updated from then on.

In: a message, what to send, the settings. Out: for each one line about the action; one that fails does not stop the
others. This tool finds its earlier posts by a marker in the text, which only counts in its own posts, so that nobody
else's text is edited.

Source: https://docs.github.com/en/rest
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlencode

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.notify.message import Message, render_markdown
from nightjar_ci.settings import Settings
from nightjar_ci.web.http import HttpError, request

Send = Callable[[Message], str]
PER_PAGE = 100
MOST_PAGES = 30
LABEL = "nightjar"


@dataclass(frozen=True, slots=True, kw_only=True)
class GitHub:
    """A repository on GitHub.

    Attributes:
        token: with permission for the requested writes.
    """

    repository: str
    token: str
    api_url: str = "https://api.github.com"

    def put_comment(self, message: Message, pull_request: int) -> str:
        """The comment about a matrix on a pull request: made once, then updated; none if all was well so far."""
        text, is_own = render_markdown(message), self._find_self()
        where = f"pull request {pull_request}"
        for comment in self._pages(f"/issues/{pull_request}/comments"):
            if message.marker in str(comment.get("body")) and is_own.matches(comment):
                if comment["body"] == text:
                    return f"{where}: the comment is up to date"
                self._call("PATCH", f"/issues/comments/{int(comment['id'])}", {"body": text})
                return f"{where}: comment updated"
        if message.state == "ok":
            return f"{where}: no comment, all is well"
        self._call("POST", f"/issues/{pull_request}/comments", {"body": text})
        return f"{where}: comment made"

    def track_issue(self, message: Message) -> str:
        """The issue of a matrix: opened when it is red, updated while it is, closed when all is well."""
        text, is_own = render_markdown(message), self._find_self()
        issues = self._pages("/issues", state="open", labels=LABEL)
        issue = next(
            (
                issue
                for issue in issues
                if "pull_request" not in issue and message.marker in str(issue.get("body")) and is_own.matches(issue)
            ),
            None,
        )
        if issue is None:
            if message.state != "red":
                return "issue: none is open"
            title = f"Nightjar: {message.night.matrix} is red"
            made = self._call("POST", "/issues", {"title": title, "body": text, "labels": [LABEL]})
            return f"issue {made.get('number')}: opened"
        number = int(issue["number"])
        if message.state == "ok":
            self._call("POST", f"/issues/{number}/comments", {"body": f"All is well in night `{message.night.id}`."})
            self._call("PATCH", f"/issues/{number}", {"state": "closed", "state_reason": "completed"})
            return f"issue {number}: closed"
        if message.state == "cannot_tell":
            return f"issue {number}: stays open, as this night cannot tell"
        if issue["body"] != text:
            self._call("PATCH", f"/issues/{number}", {"body": text})
        return f"issue {number}: updated"

    def _find_self(self) -> Author:
        """The owner of the token; a workflow's token may not ask, and is a bot's."""
        try:
            body, _ = request(f"{self.api_url}/user", accept=ACCEPT, authorization=f"Bearer {self.token}")
            return Author(login=str(json.loads(body)["login"]))
        except (HttpError, ValueError, KeyError, TypeError):
            return Author(login=None)

    def _pages(self, path: str, **query: object) -> Iterator[Any]:
        for page in range(1, MOST_PAGES + 1):
            answer = self._call("GET", f"{path}?{urlencode({**query, 'per_page': PER_PAGE, 'page': page})}")
            if not isinstance(answer, list):
                raise NightjarError(f"GitHub answered {path} with something else than a list.")
            yield from (entry for entry in answer if isinstance(entry, dict))
            if len(answer) < PER_PAGE:
                return

    def _call(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        try:
            answer, _ = request(
                f"{self.api_url}/repos/{self.repository}{path}",
                accept=ACCEPT,
                authorization=f"Bearer {self.token}",
                method=method,
                body=data,
                headers={"X-GitHub-Api-Version": "2022-11-28", "Content-Type": "application/json"},
            )
            return json.loads(answer or b"null")
        except HttpError as error:
            said = _read_message(error.body)
            hint = {
                401: "GITHUB_TOKEN is not valid",
                403: "the token needs the permission issues or pull-requests: write",
                404: "check the repository and the number, and that the token may see them",
            }.get(error.status)
            raise NightjarError(f"GitHub: {method} {path.partition('?')[0]}: {error}{said}", hint) from None
        except ValueError as error:
            raise NightjarError(f"GitHub: {method} {path.partition('?')[0]}: not JSON: {error}.") from None


ACCEPT = "application/vnd.github+json"


@dataclass(frozen=True, slots=True)
class Author:
    """The author of a token's posts: a login, or some bot if unknown."""

    login: str | None

    def matches(self, entry: Mapping[str, Any]) -> bool:
        """Whether this author wrote a comment or an issue."""
        user = entry.get("user") or {}
        if self.login is None:
            return user.get("type") == "Bot"
        return user.get("login") == self.login


def _read_message(body: bytes) -> str:
    try:
        return f": {str(json.loads(body)['message'])[:300]}"
    except (ValueError, KeyError, TypeError):
        return ""


def plan_sending(settings: Settings, *, pull_request: int | None = None, issue: bool = False) -> list[Send]:
    """The channels of a message: a comment on a pull request, an issue while it is red."""
    if pull_request is None and not issue:
        raise InputError("nothing to send: expected --pull-request or --issue.", "each is off unless it is named")
    github, sends = _find_github(settings), list[Send]()
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
