"""The message about a night: red first, short, and harmless whatever a job wrote."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from nightjar_ci.causes.causes import Cause
from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.formats.documents import write_json
from nightjar_ci.formats.night_folder import Night
from nightjar_ci.formats.run_record import Git
from nightjar_ci.formats.verdict import NightVerdicts, Verdict
from nightjar_ci.notify.github import plan_sending, send_all
from nightjar_ci.notify.message import MOST_CHARACTERS, Message, read_message, render_markdown
from nightjar_ci.settings import read_settings
from tests.ci.nights import make_night, outcome, record
from tests.ci.notify.fake_github import TOKEN, run_github
from tests.ci.site.test_site import make_verdict

EVIL = "@org/team <img src=x> [a](http://evil) `x` #12 <!channel> \u202ettxt\n```\n"


def make_cause(*verdicts: Verdict, **changes: object) -> Cause:
    cause = Cause(
        kind="regressed",
        title="2 series of 1 cell: regressed",
        explanation="15 % slower.",
        verdicts=verdicts or (make_verdict("regressed"), make_verdict("regressed", judge="facts")),
        since="2026-11-19T0300-0000",
        good="2026-11-18T0300-0000",
        nights=3,
        changes=("jax 0.10.1 -> 0.10.2",),
        command="nightjar-ci bisect --verdict verdicts.json cell/loss",
    )
    return cause if not changes else Cause(**{**{name: getattr(cause, name) for name in cause.__slots__}, **changes})


def make_message(exit_code: int, *causes: Cause, **changes: object) -> Message:
    started, ended = "2026-11-21T03:00:00+00:00", "2026-11-21T04:00:00+00:00"
    about = {"id": "2026-11-21T0300-1a2b", "matrix": "nightly-cpu", "started_at": started, "finished_at": ended}
    night = Night.model_validate({**about, "schema": "nightjar.night/1", "git": None, "jobs": (outcome(),)})
    text = {0: "all is well", 1: "2 series regressed", 4: "at least one judge cannot tell"}[exit_code]
    causes = causes or ((make_cause(),) if exit_code == 1 else ())
    values = {"night": night, "exit_code": exit_code, "exit_text": text, "causes": causes, **changes}
    return Message(**values)  # type: ignore[arg-type]


def test_the_answer_comes_first_then_each_cause_with_all_that_one_asks_at_night() -> None:
    text = render_markdown(make_message(1, report="https://example.org/r"))
    lines = text.splitlines()
    assert lines[0] == "<!-- nightjar: nightly-cpu -->"
    assert lines[1] == "## 🔴 Nightjar, nightly-cpu: 2 series regressed"
    for part in ("since:** Since night", "what changed:** jax", "  nightjar-ci bisect"):
        assert part in text
    assert "[Report](https://example.org/r)" in text


def test_what_a_job_wrote_pings_nobody_and_is_no_markup() -> None:
    text = render_markdown(make_message(1, make_cause(title=EVIL, explanation=EVIL, changes=(EVIL,))))
    for mark in ("<img", "@org", "\u202e", "#12"):
        assert mark not in text
    assert "\n```\n" not in text.replace("  ```", "")


def test_what_a_job_wrote_links_nowhere() -> None:
    addresses = "https://evil.example HTTP://evil.example www.evil.example mailto:me@evil.example GH-12"
    message = make_message(1, make_cause(title=addresses, explanation=addresses, changes=(addresses,)))
    for start in ("https:", "HTTP:", "www.", "mailto:", "GH-", "@evil"):
        assert start not in render_markdown(message)


def test_a_night_of_somebody_else_pings_nobody() -> None:
    message = make_message(1)
    git = Git.model_construct(sha="@org/team", dirty=False)
    night = message.night.model_copy(update={"matrix": "<!channel> @here", "git": git})
    text = render_markdown(dataclasses.replace(message, night=night)).partition("\n")[2]
    for mark in ("<!channel>", "@here", "@org"):
        assert mark not in text


@pytest.mark.parametrize("end", ["\n", "\r", "\u2028", "\x1b"])
def test_a_command_that_leaves_its_line_is_not_shown(end: str) -> None:
    assert "@org" not in render_markdown(make_message(1, make_cause(command=f"nightjar-ci 'a{end}@org/team'")))


def test_a_huge_night_fits_into_a_comment() -> None:
    many = [make_verdict("regressed", f"cell{number}/loss") for number in range(500)]
    causes = [make_cause(*many, explanation="x" * 20_000) for _ in range(40)]
    assert len(render_markdown(make_message(1, *causes))) <= MOST_CHARACTERS + 100


@pytest.mark.parametrize(
    ("named", "environ", "missing"),
    [
        ({}, {"GITHUB_TOKEN": "x", "GITHUB_REPOSITORY": "a/b"}, "nothing to send"),
        ({"issue": True}, {}, "GITHUB_TOKEN is not set"),
        ({"pull_request": 1}, {"GITHUB_TOKEN": "x"}, "GITHUB_REPOSITORY is None"),
        ({"issue": True}, {"GITHUB_TOKEN": "x", "GITHUB_REPOSITORY": "a/b/../c"}, "expected OWNER/NAME"),
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
        sends = plan_sending(read_settings(environ), issue=True, pull_request=3)
        done, failed = send_all(make_message(1), [refuse, *sends])
    assert [line.partition(":")[0] for line in done] == ["pull request 3", "issue 1"]
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
