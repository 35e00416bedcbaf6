"""Messages to GitHub: each made once, updated from then on, and never somebody else's text."""

from dataclasses import replace

import pytest

from nightjar_ci.errors import NightjarError
from nightjar_ci.notify.message import Message
from tests.ci.notify.fake_github import TOKEN, run_github
from tests.ci.notify.test_message import make_message

RED, GREEN, UNSURE = make_message(1), make_message(0), make_message(4)


def another_night(message: Message) -> Message:
    return replace(message, night=message.night.model_copy(update={"id": "2026-11-22T0300-1a2b"}))


def test_a_comment_is_made_once_and_updated_and_none_is_made_where_all_is_well() -> None:
    with run_github() as github:
        assert github.client.put_comment(GREEN, 7) == "pull request 7: no comment, all is well"
        assert github.writes == []
        assert github.client.put_comment(RED, 7) == "pull request 7: comment made"
        assert github.client.put_comment(RED, 7) == "pull request 7: the comment is up to date"
        assert github.client.put_comment(another_night(RED), 7) == "pull request 7: comment updated"
        assert github.client.put_comment(GREEN, 7) == "pull request 7: comment updated"
        (comment,) = github.comments
        assert "all is well" in comment["body"]
        assert len(github.writes) == 3


@pytest.mark.parametrize("login", ["me", None])
def test_what_others_wrote_is_never_edited_and_what_is_far_back_is_found(login: str | None) -> None:
    with run_github(login=login) as github:
        github.comments += [
            {"id": n, "body": f"{RED.marker} fake", "user": {"login": "eve", "type": "User"}} for n in range(150)
        ]
        github.client.put_comment(RED, 7)
        github.client.put_comment(another_night(RED), 7)
        assert len(github.comments) == 151
        assert {comment["body"] for comment in github.comments[:150]} == {f"{RED.marker} fake"}
        assert "2026-11-22" in github.comments[150]["body"]


def test_an_issue_is_open_while_it_is_red() -> None:
    with run_github() as github:
        assert github.client.track_issue(UNSURE) == "issue: none is open"
        assert github.client.track_issue(RED) == "issue 1: opened"
        assert github.client.track_issue(another_night(RED)) == "issue 1: updated"
        assert github.client.track_issue(UNSURE) == "issue 1: stays open, as this night cannot tell"
        assert github.client.track_issue(GREEN) == "issue 1: closed"
        assert github.client.track_issue(GREEN) == "issue: none is open"
        assert github.client.track_issue(RED) == "issue 2: opened"
        assert [issue["state"] for issue in github.issues] == ["closed", "open"]
        assert github.issues[0]["title"] == "Nightjar: nightly-cpu is red"
        assert "All is well in night" in github.comments[0]["body"]


def test_a_pull_request_and_another_matrix_are_not_its_issue() -> None:
    with run_github() as github:
        own = {"state": "open", "labels": ["nightjar"], "user": github.author}
        github.issues += [
            {"number": 1, "body": RED.marker, "pull_request": {}, **own},
            {"number": 2, "body": "<!-- nightjar: other -->", **own},
        ]
        assert github.client.track_issue(RED) == "issue 3: opened"


@pytest.mark.parametrize(("status", "hint"), [(403, "permission "), (404, "repository"), (401, "GITHUB_TOKEN")])
def test_a_refusal_says_why_and_not_the_token(status: int, hint: str) -> None:
    with run_github(refuse=status) as github, pytest.raises(NightjarError, match="not accessible") as raised:
        github.client.put_comment(RED, 7)
    assert hint in str(raised.value.hint)
    assert TOKEN not in str(raised.value)
