"""Where messages go: nowhere unless asked, and one failure does not stop the others."""

from pathlib import Path
from typing import Any

import pytest

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.formats.documents import write_json
from nightjar_ci.formats.verdict import NightVerdicts
from nightjar_ci.notify.github import plan_sending, send_all
from nightjar_ci.notify.message import Message, read_message
from nightjar_ci.settings import read_settings
from tests.ci.nights import make_night, outcome, record
from tests.ci.notify.fake_github import TOKEN, run_github
from tests.ci.notify.test_message import make_message
from tests.ci.site.test_site import make_verdict


@pytest.mark.parametrize(
    ("named", "environ", "missing"),
    [
        ({}, {"GITHUB_TOKEN": "x", "GITHUB_REPOSITORY": "a/b"}, "nothing to send"),
        ({"issue": True}, {}, "GITHUB_TOKEN is not set"),
        ({"pull_request": 1}, {"GITHUB_TOKEN": "x"}, "GITHUB_REPOSITORY is None"),
        ({"check": "c"}, {"GITHUB_TOKEN": "x", "GITHUB_REPOSITORY": "a/b/../c"}, "expected OWNER/NAME"),
    ],
)
def test_nothing_is_sent_unasked_or_without_settings(named: dict[str, Any], environ: Any, missing: str) -> None:
    with pytest.raises(InputError, match=missing):
        plan_sending(read_settings(environ), **named)


def test_a_channel_that_fails_does_not_stop_the_others() -> None:
    def refuse(message: Message) -> str:
        raise NightjarError(f"{message.headline}: refused.")

    with run_github() as github:
        environ = {"GITHUB_TOKEN": TOKEN, "GITHUB_REPOSITORY": "org/repo", "GITHUB_API_URL": github.served.url}
        sends = plan_sending(read_settings(environ), issue=True, pull_request=3, check="c" * 40)
        done, failed = send_all(make_message(1), [refuse, *sends])
    told = ["check 'nightjar (nightly-cpu)' of cccccccccccc", "pull request 3", "issue 1"]
    assert [line.partition(":")[0] for line in done] == told
    assert [error.message for error in failed] == ["Nightjar, nightly-cpu: 2 series regressed: refused."]


def test_the_message_of_a_night_is_read_from_its_folder(tmp_path: Path) -> None:
    folder, settings = tmp_path / "night", read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path / "state")})
    make_night(folder, [(outcome(), record())])
    with pytest.raises(InputError, match="has not been judged"):
        read_message(folder, tmp_path / "policies.toml", settings)
    judged = NightVerdicts(night="2026-11-21T0300-1a2b", verdicts=(make_verdict("regressed"),))
    write_json(folder / "verdicts.json", judged)
    message = read_message(folder, tmp_path / "policies.toml", settings)
    assert (message.state, message.exit_text) == ("red", "1 series regressed")
