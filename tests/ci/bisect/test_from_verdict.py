"""The ends of the bisection of a regression that its history found nights after it began."""

from __future__ import annotations

from pathlib import Path

from nightjar_ci.bisect.options.choose_ladder import Asked
from nightjar_ci.bisect.options.from_verdict import ask_from_verdict
from nightjar_ci.formats.verdict import read_verdicts, write_verdicts
from tests.ci.bisect.test_command import LOSS, nights


def test_the_good_end_is_the_night_that_the_verdict_names_and_no_later_one_that_was_ok(tmp_path: Path) -> None:
    old, new = {"jax": "0.10.1"}, {"jax": "0.10.3"}
    known = LOSS.model_copy(
        update={"judge": "history", "policy": {"since": "2026-11-02T0300-0001", "good_night": "2026-11-01T0300-0000"}}
    )
    path = nights(tmp_path, known, good=old, bad=new)
    unseen = path.parents[1] / "2026-11-02T0300-0001"  # was ok when it ran: the change was found a night later
    verdicts = read_verdicts(unseen / "verdicts.json")
    seen_as_ok = tuple(one.model_copy(update={"status": "ok"}) for one in verdicts.verdicts)
    write_verdicts(unseen / "verdicts.json", verdicts.model_copy(update={"verdicts": seen_as_ok}))
    text = (unseen / "jobs" / "demo-s0" / "result.json").read_text()
    (unseen / "jobs" / "demo-s0" / "result.json").write_text(text.replace("0.10.1", "0.10.2"))
    asked = ask_from_verdict(Asked(command=()), path, "demo/loss")
    assert (asked.good, asked.bad) == (("jax==0.10.1",), ("jax==0.10.3",))
