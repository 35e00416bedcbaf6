"""Each entry of the museum can give both answers, and says of which release it speaks."""

import dataclasses
import math
import platform
from importlib.metadata import version

import numpy as np
import pytest

from nightjar_ci.night.matrix import expand, read_matrix
from nightjar_models.canaries import array_functions, derivatives, many_dimensions, run, special_functions
from nightjar_models.canaries.entry import Canary, Finding, find_difference, look
from tests.places import ROOT

TABLES = (special_functions, derivatives, array_functions, many_dimensions)
ENTRIES = [canary for table in TABLES for canary in table.CANARIES]


def _make_canary(value: object, expected: object, **options: object) -> Canary:
    known = {"name": "made_up", "issue": "example/project#1", "seen": ("0.10.2",)}
    return Canary(**{**known, "compute": lambda: value, "expected": expected, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [(1.0, 1.1), (math.nan, 0.0), (math.inf, math.nan), ([0, 0], [1, 0]), ([0], [0, 1]), (True, False), (4e-18, 0.0)],
)
def test_a_value_is_right_or_named_beside_the_right_one(right: object, wrong: object) -> None:
    assert find_difference(_make_canary(right, right)) is None
    assert find_difference(_make_canary(wrong, right)) == f"{wrong} in place of {right}"


@pytest.mark.parametrize("canary", ENTRIES, ids=lambda canary: canary.name)
def test_each_entry_takes_its_expected_value_and_no_other(canary: Canary) -> None:
    stand_in = dataclasses.replace(canary, compute=lambda: canary.expected)
    assert find_difference(stand_in) is None
    expected = np.asarray(canary.expected)
    other = np.where(expected == 0, 1, 0)
    assert find_difference(dataclasses.replace(canary, compute=lambda: other)) is not None


def test_only_the_error_that_users_meet_is_the_defect() -> None:
    def refuse() -> object:
        raise TypeError("inside")

    assert find_difference(_make_canary(0, 1, compute=refuse, error=TypeError)) == "TypeError in place of 1"
    with pytest.raises(TypeError, match="inside"):
        find_difference(_make_canary(0, 1, compute=refuse, error=ValueError))


@pytest.mark.parametrize(
    ("wrong", "right", "release", "verdict", "is_mended_later"),
    [
        (None, None, "0.12.0.1", "fixed", False),
        ("0", None, "0.12.0.1", "still broken", False),
        ("0", "0.12.0.1", "0.10.2", "still broken", True),
        ("0", "0.12.0.1", "0.12.0.1", "new", False),
        ("0", "0.12.0.1", "0.13.0.dev20261125", "new", False),
    ],
)
def test_a_defect_that_is_back_is_new(
    wrong: str | None, right: str | None, release: str, verdict: str, is_mended_later: bool
) -> None:
    finding = Finding(canary=_make_canary(0, 1, right=right), wrong=wrong, release=release)
    assert (finding.verdict, finding.is_mended_later) == (verdict, is_mended_later)


def test_a_table_has_a_test_per_entry_and_a_crash_hides_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash() -> object:
        raise RuntimeError("no memory")

    entries = (
        _make_canary(0, 0, name="mended"),
        _make_canary(0, 0, name="crashing", compute=crash),
        _make_canary(0, 1, name="broken"),
        _make_canary(0, 1, name="later", right="99.0"),
        _make_canary(0, 1, name="back", right="0.1"),
    )
    monkeypatch.setattr(derivatives, "CANARIES", entries)
    results = {result.name: result for result in run.look_at_table(derivatives)}
    assert {name: result.ends for name, result in results.items()} == {
        "mended": "passed",
        "crashing": "error",
        "broken": "failure",
        "later": "skipped",
        "back": "failure",
    }
    assert results["crashing"].line == "crashed: crashing: RuntimeError: no memory"
    assert results["back"].line.startswith("new: back: 0 in place of 1 (jax ")
    assert '<skipped message="still broken: later' in run.write_junit(list(results.values()))


def test_a_defect_without_a_mending_release_is_a_known_failure_and_no_other_is() -> None:
    jobs = {job.command[-1]: job for job in expand(read_matrix(ROOT / "ci" / "matrix" / "canaries.toml"))}
    for table in TABLES:
        job = jobs[table.__name__.rpartition(".")[2]]
        for canary in table.CANARIES:
            listed = job.tests.find_known(f"canaries.{canary.name}") if job.tests is not None else None
            assert (listed is not None) == (canary.right is None)
            if listed is not None:
                repository, number = canary.issue.split("#")
                assert listed.issue is not None
                assert listed.issue.startswith(f"https://github.com/{repository}/")
                assert listed.issue.endswith(f"/{number}")
    assert len({canary.name for canary in ENTRIES}) == len(ENTRIES)


def is_seen_here(canary: Canary) -> bool:
    """Whether the defect was seen in the installed release, and on this kind of processor."""
    elsewhere = canary in many_dimensions.CANARIES and platform.machine() != "x86_64"
    return version(canary.package) in canary.seen and not elsewhere


@pytest.mark.parametrize("canary", [one for one in ENTRIES if is_seen_here(one)], ids=lambda canary: canary.name)
def test_a_defect_is_there_in_a_release_in_which_it_was_seen(canary: Canary, request: pytest.FixtureRequest) -> None:
    if canary.name.endswith("_half"):
        request.getfixturevalue("float16")
    assert look(canary).wrong is not None
