"""Patterns that backtrack for ever, on lines that a job chose."""

from pathlib import Path

import pytest

from nightjar_ci.bisect.probing.classify import Metric
from nightjar_ci.night.matrix import read_matrix
from nightjar_ci.night.run import run_night
from nightjar_ci.untrusted.pattern_search import SlowPatternError, find_last, find_names, match_lines
from tests.ci.jobs import python, write_matrix
from tests.ci.nights import outcome

SLOW = "(a+)+$"
LINE = "a" * 64 + "!"


def test_the_last_match_counts() -> None:
    assert find_last(r"us=(\d+)", "us=999 warm-up\nUS=11\n") == "11"
    assert find_last(r"us=(\d+)", "ms=11") is None
    assert find_last(r"^(\w)$", "a\nb\nc d") == "b"


def test_a_group_that_took_no_part_in_the_last_match_is_no_value() -> None:
    assert find_last(r"a(\d)?", "a1 a") is None


def test_names_come_once_and_five_at_most() -> None:
    assert find_names(r"(\w)=", "".join(f"{name}=1 " for name in "aabcdefg")) == ["a", "b", "c", "d", "e"]


def test_lines_have_their_number_and_their_named_groups() -> None:
    found = list(match_lines(r"loss (?P<loss>\S+)(?: at (?P<step>\d+))?", "x\nloss 1\nloss é\N{BABY} at 3\r\n"))
    assert found == [(2, {"loss": "1"}), (3, {"loss": "é\N{BABY}", "step": "3"})]


@pytest.mark.parametrize("search", [find_last, find_names, lambda *asked: list(match_lines(*asked))])
def test_a_search_ends_at_its_deadline(search: object) -> None:
    assert callable(search)
    with pytest.raises(SlowPatternError, match=r"took longer than 1 s on 65 characters") as caught:
        search(SLOW, LINE, 1.0)
    assert "nested repetitions" in (caught.value.hint or "")


@pytest.mark.slow
def test_groups_that_hold_more_than_the_text_end_the_search(tmp_path: Path) -> None:
    groups = "".join(f"(?P<g{number}>" for number in range(60)) + ".*" + ")" * 60
    with pytest.raises(SlowPatternError, match="its groups hold more than"):
        list(match_lines(groups, "x" * 8_000_000 + "\n"))


def test_a_job_with_an_adapter_whose_pattern_runs_for_ever_is_invalid_within_its_timeout(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(
        f"""
schema = "nightjar.matrix/1"
name = "slow"
[defaults]
timeout_s = 3
[[job]]
name = "slow"
command = ["echo", "{LINE}"]
[job.adapter]
format = "log"
pattern = "(?P<x>(a+)+)$"
sample = [{{ field = "x" }}]
"""
    )
    (done,) = run_night(read_matrix(path), tmp_path / "night").jobs
    assert done.state == "invalid"
    assert "took longer than 3 s" in (done.message or "")


@pytest.mark.parametrize(("pattern", "text"), [(SLOW, LINE), (None, "us=" + "1" * 400_000 + "x")])
def test_a_metric_whose_pattern_runs_for_ever_cannot_tell(tmp_path: Path, pattern: str | None, text: str) -> None:
    (tmp_path / "stdout.log").write_text(f"{text}\n")
    metric = Metric(better="lower", name=None if pattern else "us", pattern=pattern, search_s=1.0)
    reading = metric.read(outcome(), tmp_path, None)
    assert reading.answer == "cannot_tell"
    assert "took longer than 1 s" in (reading.why or "")


@pytest.mark.slow
def test_a_metric_is_the_last_one_of_an_output_with_much_between(tmp_path: Path) -> None:
    program = "print('us=999 (warm-up)'); print(('x' * 99 + '\\n') * 700_000); print('us=11')"
    run_night(read_matrix(write_matrix(tmp_path / "m.toml", {"early": python(program)})), tmp_path / "night")
    job = tmp_path / "night" / "jobs" / "early"
    assert Metric(better="lower", name="us").read(outcome(), job, None).value == 11
    assert Metric(better="lower", pattern=r"(\d+) bytes here").read(outcome(), job, None).answer == "cannot_tell"
    missing = Metric(better="lower", name="ms").read(outcome(), job, None).why or ""
    assert "in the last 8 MiB of its output; " in missing
    assert missing.endswith(" bytes before were not kept, but us")
