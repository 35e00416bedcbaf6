"""What the ledger of a night says of series that few nights had: one job is enough, and judges wait for nights."""

from pathlib import Path

from nightjar_ci.formats.documents import write_text
from tests.ci.faulty_nights import TONIGHT, sample
from tests.ci.gate.test_presence import POLICIES, due, earlier, gate_edited, here
from tests.ci.nights import CELL

__all__ = ["earlier", "here"]


def test_of_what_only_a_policy_names_one_job_is_enough(here: Path) -> None:
    named = f'[[history]]\njobs = "{CELL}"\nmeasure = "tokens_per_s"\n'
    write_text(here / "ci" / "policies.toml", POLICIES + named)
    speed = sample("tokens_per_s", "tokens/s", 900.0, better="higher")
    assert gate_edited(here, lambda results: results[f"{CELL}-s1"]["samples"].append(speed)) == (0, [])


def test_what_a_policy_judges_later_has_too_few_nights(here: Path) -> None:
    write_text(here / "ci" / "policies.toml", POLICIES.replace('"step_time"', '"step_time"\nmin_nights = 60'))
    gate_edited(here, lambda results: None)
    ledger = here / "nights" / TONIGHT
    assert due(ledger, f"{CELL}/step_time").not_judged == "too few nights in this environment"
    assert due(ledger, f"{CELL}/bandwidth").not_judged == "no policy judges it"
