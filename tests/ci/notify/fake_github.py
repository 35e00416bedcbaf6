"""A GitHub on loopback: the issues and comments of one repository, with pages of the size that is asked for."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from nightjar_ci.notify.github import GitHub
from tests.ci.servers import Answer, Served, serve

TOKEN = "secret-token"


@dataclass
class FakeGitHub:
    login: str | None = "me"
    refuse: int = 0
    issues: list[dict[str, Any]] = field(default_factory=list)
    comments: list[dict[str, Any]] = field(default_factory=list)
    served: Served = field(default_factory=Served)

    @property
    def client(self) -> GitHub:
        return GitHub(repository="org/repo", token=TOKEN, api_url=self.served.url)

    @property
    def writes(self) -> list[str]:
        return [f"{method} {path}" for method, path in self.served.asked if method != "GET"]

    @property
    def author(self) -> dict[str, str]:
        if self.login is None:
            return {"login": "github-actions[bot]", "type": "Bot"}
        return {"login": self.login, "type": "User"}

    def answer(self, method: str, path: str, authorization: str | None) -> Answer:
        if authorization != f"Bearer {TOKEN}":
            return 401, {}, b'{"message": "Bad credentials"}'
        parts = urlsplit(path)
        if parts.path == "/user":
            if self.login is None:
                return 403, {}, b'{"message": "Resource not accessible by integration"}'
            return 200, {}, json.dumps({"login": self.login}).encode()
        if method != "GET" and self.refuse:
            return self.refuse, {}, b'{"message": "Resource not accessible"}'
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        body = json.loads(self.served.bodies[-1] or b"{}")
        made = self._route(method, parts.path.removeprefix("/repos/org/repo"), query, body)
        return 200, {}, json.dumps(made).encode()

    def _route(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Any:
        if path == "/issues" and method == "GET":
            issues = [issue for issue in self.issues if issue["state"] == "open" and query["labels"] in issue["labels"]]
            return self._page(issues, query)
        if path == "/issues":
            self.issues.append({"number": len(self.issues) + 1, "state": "open", "user": self.author, **body})
            return self.issues[-1]
        if match := re.fullmatch(r"/issues/comments/(\d+)", path):
            self.comments[int(match[1])].update(body)
            return {}
        if re.fullmatch(r"/issues/\d+/comments", path):
            if method == "GET":
                return self._page(self.comments, query)
            self.comments.append({"id": len(self.comments), "user": self.author, **body})
            return {}
        if match := re.fullmatch(r"/issues/(\d+)", path):
            self.issues[int(match[1]) - 1].update(body)
            return {}
        return {}

    def _page(self, entries: list[dict[str, Any]], query: dict[str, str]) -> list[dict[str, Any]]:
        size, number = int(query["per_page"]), int(query["page"])
        return entries[size * (number - 1) : size * number]


@contextmanager
def run_github(**options: Any) -> Iterator[FakeGitHub]:
    fake = FakeGitHub(**options)
    with serve(fake.answer) as served:
        fake.served = served
        yield fake
