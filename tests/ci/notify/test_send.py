"""Where messages go: nowhere unless asked, a chat by its secret address, and one failure does not stop the others."""

import json
from pathlib import Path

import pytest

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.formats.documents import write_json
from nightjar_ci.formats.verdict import NightVerdicts
from nightjar_ci.notify.message import read_message
from nightjar_ci.notify.send import Channels, plan_sending, send_all, send_chat
from nightjar_ci.settings import read_settings
from tests.ci.nights import make_night, outcome, record
from tests.ci.notify.fake_github import TOKEN, run_github
from tests.ci.notify.test_message import make_cause, make_message
from tests.ci.servers import serve
from tests.ci.site.test_site import make_verdict

NEWS = make_message(1, make_cause(nights=1))


def test_nothing_is_sent_that_is_not_asked_for() -> None:
    with pytest.raises(InputError, match="nothing to send"):
        plan_sending(Channels(), read_settings({"GITHUB_TOKEN": "x", "GITHUB_REPOSITORY": "a/b"}))


@pytest.mark.parametrize(
    ("channels", "environ", "missing"),
    [
        (Channels(issue=True), {}, "GITHUB_TOKEN is not set"),
        (Channels(pull_request=1), {"GITHUB_TOKEN": "x"}, "GITHUB_REPOSITORY is None"),
        (Channels(check="c"), {"GITHUB_TOKEN": "x", "GITHUB_REPOSITORY": "a/b/../c"}, "expected OWNER/NAME"),
        (Channels(webhook=True), {}, "NIGHTJAR_WEBHOOK_URL is not set"),
    ],
)
def test_missing_settings_are_said_before_it_sends(channels: Channels, environ: dict[str, str], missing: str) -> None:
    with pytest.raises(InputError, match=missing):
        plan_sending(channels, read_settings(environ))


def test_a_chat_hears_of_news_only() -> None:
    with serve(lambda *_: (200, {}, b"ok")) as server:
        assert send_chat(make_message(1), f"{server.url}/secret") == "webhook: nothing new to say"
        assert send_chat(NEWS, f"{server.url}/secret") == "webhook: sent to 127.0.0.1"
    (body,) = server.bodies
    assert json.loads(body)["text"] == "Nightjar, nightly-cpu: 2 series regressed"


def test_a_chat_that_refuses_does_not_give_its_address_away_and_does_not_stop_the_others() -> None:
    with serve(lambda *_: (404, {}, b"no_service")) as server, run_github() as github:
        environ = {
            "GITHUB_TOKEN": TOKEN,
            "GITHUB_REPOSITORY": "org/repo",
            "GITHUB_API_URL": github.served.url,
            "NIGHTJAR_WEBHOOK_URL": f"{server.url}/services/T0/secret",
        }
        sends = plan_sending(Channels(webhook=True, issue=True, pull_request=3, check="c" * 40), read_settings(environ))
        done, failed = send_all(NEWS, sends)
    assert [line.partition(":")[0] for line in done] == [
        "check 'nightjar (nightly-cpu)' of cccccccccccc",
        "pull request 3",
        "issue 1",
    ]
    (error,) = failed
    assert error.message == "webhook: 127.0.0.1: status 404."
    assert isinstance(error, NightjarError)


def test_an_address_that_is_not_valid_is_not_a_bug_and_is_not_shown() -> None:
    with pytest.raises(NightjarError, match="webhook: the address is not a valid URL") as caught:
        send_chat(NEWS, "http://[5ecret/services")
    assert "5ecret" not in str(caught.value)


def test_the_message_of_a_night_is_read_from_its_folder(tmp_path: Path) -> None:
    folder, settings = tmp_path / "night", read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path / "state")})
    make_night(folder, [(outcome(), record())])
    with pytest.raises(InputError, match="has not been judged"):
        read_message(folder, tmp_path / "policies.toml", settings)
    judged = NightVerdicts(night="2026-11-21T0300-1a2b", verdicts=(make_verdict("regressed"),))
    write_json(folder / "verdicts.json", judged)
    message = read_message(folder, tmp_path / "policies.toml", settings)
    assert (message.state, message.is_news, message.exit_text) == ("red", True, "1 series regressed")
