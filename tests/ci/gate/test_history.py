"""Histories of suites as they really are, night after night through the gate and a real store."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nightjar_ci.baselines.accepted import Entry, add_entry
from nightjar_ci.formats.documents import write_text
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.policy import Policies, read_policies
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.formats.verdict import NightVerdicts, Verdict
from nightjar_ci.gate.gate import find_exit_code, gate_night
from nightjar_ci.gate.history import MOST_NAMED, Memory, judge_histories, remember
from nightjar_ci.store import Store
from nightjar_ci.store.folder import import_night
from tests.ci.judges.judged import make_series
from tests.ci.nights import make_night, outcome, record
from tests.places import ROOT

POLICIES = read_policies(ROOT / "ci/nightjar_ci/formats/policies.toml")
START = datetime(2026, 1, 5, 3, tzinfo=UTC)  # a Monday
Values = Mapping[str, float | Sequence[float]]  # by measure; several are of several seeds
World = Callable[[int], Values]


class Played:
    """The last nights of a world: exit codes, verdicts of histories and presence, notes."""

    def __init__(self) -> None:
        self.codes, self.nights, self.notes = list[int](), list[list[Verdict]](), list[tuple[str, ...]]()

    def add(self, code: int, night: NightVerdicts) -> None:
        self.codes.append(code)
        self.nights.append([one for one in night.verdicts if one.judge in ("history", "presence")])
        self.notes.append(night.notes)

    def count(self, status: str, night: int = -1) -> int:
        return sum(one.status == status for one in self.nights[night])

    def of(self, measure: str, night: int = -1) -> Verdict:
        (verdict,) = [one for one in self.nights[night] if one.series.endswith(f"/{measure}")]
        return verdict


def play(
    folder: Path,
    store: Store,
    world: World,
    nights: int,
    gated: int,
    *,
    unit: str = "s",
    better: Callable[[int], str] = lambda night: "lower",
    machine: Callable[[int], str] = lambda night: "A",
    jax: Callable[[int], str] = lambda night: "0.10.2",
) -> Played:
    """Makes the nights of a world, which says the values of each by its number, and gates the last of them."""
    played = Played()
    for number in range(nights):
        night, values = f"{START + timedelta(days=number):%Y-%m-%d}T0300-0000", world(number)
        seeds = max((len(one) for one in values.values() if isinstance(one, Sequence)), default=1)
        runs = []
        for seed in range(seeds):
            samples = {name: one[seed] if isinstance(one, Sequence) else one for name, one in values.items()}
            one = make_record(seed, samples, unit, better(number), machine(number), jax(number))
            runs.append((outcome(f"cell-s{seed}"), one))
        made = make_night(folder / night, runs, night)
        if number < nights - gated:
            import_night(store, made)
        else:
            results = read_night_results(made)
            verdicts = gate_night(results, POLICIES, folder / "none", store)
            played.add(find_exit_code(results, verdicts), verdicts)
    return played


def make_record(seed: int, samples: Mapping[str, float], unit: str, better: str, machine: str, jax: str) -> RunRecord:
    one = record(seed, values=[3.0, 2.0], facts=[], job=f"cell-s{seed}", jaxlib=jax)
    cpu = one.environment.cpu.model_copy(update={"model": machine})
    update: dict[str, Any] = {"environment": one.environment.model_copy(update={"cpu": cpu}), "curves": ()}
    sample = {"unit": unit, "better": better, "warmup": 0}
    kinds = type(one.samples[0])
    update["samples"] = tuple(kinds.model_validate({"name": n, "values": [v], **sample}) for n, v in samples.items())
    return one.model_copy(update=update)


def noise(seed: int, size: float = 0.01, nights: int = 120, series: int = 1) -> Any:
    return np.exp(np.random.default_rng(seed).normal(0, size, (nights, series)))


def suite(factors: Any) -> World:
    """Measures b00, b01, ... of a fifth of a second, times their factors."""
    return lambda night: {f"b{place:02d}": 0.2 * float(one) for place, one in enumerate(factors[night])}


def test_a_measure_that_starts_at_zero_is_red_by_its_third_night_and_stays_so(tmp_path: Path, store: Store) -> None:
    def world(night: int) -> Values:
        return {
            "nan_steps": 3.0 * (night >= 20),
            "transfers": 4e9 * (night >= 20),
            "programs_count": 9.0 * (night >= 20),
        }

    played = play(tmp_path, store, world, 30, 10)
    assert [played.count("regressed", night) for night in range(10)] == [1, 1, *[3] * 8]
    assert "programs_count is worse" in played.of("programs_count", 0).explanation
    assert "+3 s" in played.of("nan_steps").explanation


def test_a_measure_that_goes_back_to_zero_is_mended(tmp_path: Path, store: Store) -> None:
    played = play(tmp_path, store, lambda night: {"nan_steps": 3.0 * (20 <= night < 26)}, 32, 12)
    assert played.codes[2:6] == [1] * 4
    assert played.codes[-1] == 0


def test_on_a_new_machine_nothing_is_said_to_be_good_until_its_own_history_decides(
    tmp_path: Path, store: Store
) -> None:
    factors = noise(1, nights=40, series=2)
    factors[25:] *= 1.2
    played = play(tmp_path, store, suite(factors), 40, 15, machine=lambda night: "AB"[night >= 25])
    assert played.codes == [4] * 12 + [0] * 3
    assert "ran on another machine than before, 1 of the 13 nights" in played.of("b00", 0).explanation


def test_one_seed_of_three_that_is_three_times_slower_is_red(tmp_path: Path, store: Store) -> None:
    factors = noise(2, nights=32, series=3)
    factors[24:, 1] *= 3
    played = play(tmp_path, store, lambda night: {"step_time": (0.2 * factors[night]).tolist()}, 32, 10)
    assert played.codes[:2] == [0] * 2
    assert played.codes[4:] == [1] * 6
    verdict = played.of("step_time")
    assert "step_time of the worst of its runs is worse" in verdict.explanation
    assert verdict.policy["of_worst"] is True


def test_the_worst_of_many_runs_is_not_compared_with_nights_of_one(tmp_path: Path, store: Store) -> None:
    random = np.random.default_rng(5)

    def night(number: int) -> dict[str, Any]:
        return {"step_time": (0.2 * np.exp(random.normal(0, 0.02, 1 if number < 50 else 10))).tolist()}

    played = play(tmp_path, store, night, 64, 14)
    assert 1 not in played.codes


def test_what_was_accepted_under_an_earlier_name_stays_accepted(tmp_path: Path, store: Store) -> None:
    entries = [{"night": "n40", "level": 0.3}, {"night": "n70", "ended": True, "renamed_to": "cell/new"}]
    for entry in entries:
        about = {"reason": "x", "by": "y", "at": "2026-11-29"}
        write_text(*add_entry(tmp_path, "cell/old", Entry.model_validate({**entry, **about})))
    assert remember(store, "2027", tmp_path).accepted["cell/new"] == ["n40"]


def test_memory_that_grows_by_a_byte_a_night_is_ok(tmp_path: Path, store: Store) -> None:
    played = play(tmp_path, store, lambda night: {"memory": 4e9 + night}, 30, 10, unit="bytes")
    assert played.codes == [0] * 10


def test_another_direction_is_a_doubt_until_it_is_accepted(tmp_path: Path, store: Store) -> None:
    directions = ["lower"] * 22 + ["higher"] * 8
    played = play(tmp_path, store, suite(noise(3)), 30, 9, better=lambda night: directions[night])
    assert played.codes == [0] + [4] * 8
    assert "now a sample where higher is better" in played.of("b00").explanation


def test_a_slow_machine_is_one_finding_and_a_spell_like_one_before_is_none(tmp_path: Path, store: Store) -> None:
    factors = noise(4, nights=40, series=10)
    for start in (18, 30):
        factors[start : start + 5] *= 1.08
    played = play(tmp_path, store, suite(factors), 40, 22)
    together = [["changed together" in one.explanation for one in night] for night in played.nights]
    assert [sum(found) for found in together] == [0] + [1] * 4 + [0] * 17
    assert max(played.count("regressed", night) for night in range(22)) == 0
    assert played.codes[:5] == [0, 4, 4, 4, 4]


def test_a_suite_that_becomes_slower_as_a_whole_is_one_finding_by_the_third_night(tmp_path: Path, store: Store) -> None:
    factors = noise(5, 0.02, 46, 40)
    factors[40:] *= 1.03
    played = play(tmp_path, store, suite(factors), 46, 6)
    assert max(played.count("regressed", night) for night in range(6)) == 0
    for night in range(2, 6):
        (found,) = [one for one in played.nights[night] if "changed together" in one.explanation]
        assert found.effect is not None
        assert found.effect.value == pytest.approx(0.03, abs=0.005)


@pytest.mark.parametrize("rhythm", ["weekends", "alternating machines"])
def test_a_fifth_is_found_in_three_nights_whatever_the_rhythm_of_the_machine(
    tmp_path: Path, store: Store, rhythm: str
) -> None:
    factors = noise(6, nights=47, series=12)
    slow = [night % 7 >= 5 if rhythm == "weekends" else night % 2 for night in range(47)]
    factors[np.array(slow, dtype=bool)] *= 1.15 if rhythm == "weekends" else 1.12
    factors[44:, :4] *= 1.2
    played = play(tmp_path, store, suite(factors), 47, 10)
    assert [played.count("regressed", night) for night in range(10)] == [0] * 9 + [4]


def test_what_is_measured_on_some_days_of_the_week_is_due_on_those(tmp_path: Path, store: Store) -> None:
    def world(night: int) -> Values:
        return {"daily": 0.2, **({"some": 0.2} if night % 7 in (0, 2, 4) and night < 42 else {})}

    played = play(tmp_path, store, world, 49, 21)
    assert played.codes == [0] * 14 + [4] * 7  # a Monday without it
    assert played.of("some").explanation.startswith("some is missing")


def test_a_drift_is_said_with_its_slope_and_names_no_night(tmp_path: Path, store: Store) -> None:
    factors = noise(9, nights=100, series=12)
    factors[:, :3] *= (1.001 ** np.arange(100))[:, None]
    played = play(tmp_path, store, suite(factors), 100, 5)
    assert [played.count("regressed", night) for night in range(5)] == [0] * 5
    assert played.of("b00").status == "cannot_tell"
    assert "b00 drifts: +0.1" in played.of("b00").explanation


def test_a_regression_that_turns_out_to_be_a_drift_is_one(tmp_path: Path, store: Store) -> None:
    factors = noise(9, nights=60, series=12)
    factors[:, 0] *= 1.003 ** np.maximum(0, np.arange(60) - 14)
    played = play(tmp_path, store, suite(factors), 60, 30)
    statuses = [played.of("b00", night).status for night in range(30)]
    assert "regressed" in statuses  # of 30 nights a step explains as much
    assert statuses[-1] == "cannot_tell"
    assert "b00 drifts: +0.3" in played.of("b00").explanation


def test_a_false_alarm_ends_the_finding_and_keeps_the_history(tmp_path: Path, store: Store) -> None:
    factors, baselines = noise(3, nights=36), tmp_path / "none"
    factors[30:33] *= 1.3
    found = play(tmp_path, store, suite(factors), 36, 6).of("b00")
    assert found.status == "regressed"  # it stands, though three nights were as fast as ever
    entry = Entry(
        night=found.policy["since"], false_alarm=True, reason="a backup ran", by="Ada", at="2026-11-21T03:00Z"
    )
    write_text(*add_entry(baselines, found.series, entry))
    night = read_night_results(tmp_path / f"{START + timedelta(days=35):%Y-%m-%d}T0300-0000")
    (after,) = (one for one in gate_night(night, POLICIES, baselines, store).verdicts if one.judge == "history")
    assert after.status == "ok"
    assert not any("accepted" in line for line in after.details)  # which a new level would say


def test_in_a_pool_of_runners_each_kind_has_its_history_and_a_regression_stands_on_its_own(
    tmp_path: Path, store: Store
) -> None:
    machines = ["AB"[number % 3 == 2] for number in range(60)]  # A A B
    factors = noise(0, nights=60) * np.array([[1.3 if machine == "B" else 1.0] for machine in machines])
    factors[48:] *= [[3.0 if machine == "A" else 1.0] for machine in machines[48:]]
    played = play(tmp_path, store, suite(factors), 60, 12, machine=lambda night: machines[night])
    codes: dict[str, list[int]] = {"A": [], "B": []}
    for machine, code in zip(machines[48:], played.codes, strict=True):
        codes[machine].append(code)
    assert codes["A"] == [4, 4, *[1] * 6]
    assert 1 not in codes["B"]
    left_out = "compared with 33 nights on the same machine; 16 on others have their own history"
    assert played.of("b00", 0).details[0] == left_out
    assert played.of("b00", -2).policy["since"] == "2026-02-22T0300-0000"


@pytest.mark.parametrize("nights", [12, 20])
def test_a_history_is_judged_from_its_thirteenth_night_on_and_across_versions(
    tmp_path: Path, store: Store, nights: int
) -> None:
    factors = noise(0, nights=nights + 3)
    factors[nights:] *= 3
    played = play(tmp_path, store, suite(factors), nights + 3, 3, jax=lambda night: f"0.10.{1 + (night >= 20)}")
    assert played.codes == [4, 4, 1]


@pytest.mark.parametrize(
    ("scale", "tonight", "waiting"),
    [
        ("log", 0.05, True),
        ("log", 0.0, True),
        ("linear", 0.0, True),
        ("linear", -1.0, True),
        ("linear", math.nan, False),
    ],
)
def test_a_series_waits_for_nights_where_tonights_value_can_be_compared(
    scale: str, tonight: float, waiting: int
) -> None:
    policies = Policies.model_validate({"schema": "nightjar.policies/1", "history": [{"scale": scale}]})
    series = make_series([0.05, 0.05, tonight])
    notes: list[str] = []
    assert list(judge_histories(Memory(series=(series,)), policies, [], {}, notes)) == []
    expected = "Too few nights for a judged history: cell/step_time (2 of 12 earlier nights)."
    assert notes == [expected][:waiting]


@pytest.mark.parametrize(("values", "waits_for"), [((5, 5, 5), "2 of 3"), ((5, 7, 4, 8, 5), "4 of 12")])
def test_a_counter_waits_for_three_nights_unless_it_is_noisy(values: Sequence[float], waits_for: str) -> None:
    policies = Policies.model_validate({"schema": "nightjar.policies/1", "history": [{"deterministic": True}]})
    notes: list[str] = []
    assert list(judge_histories(Memory(series=(make_series(values),)), policies, [], {}, notes)) == []
    assert notes == [f"Too few nights for a judged history: cell/step_time ({waits_for} earlier nights)."]


def test_a_note_counts_the_nights_of_tonights_machine() -> None:
    policies = Policies.model_validate({"schema": "nightjar.policies/1", "history": [{"measure": "*"}]})
    values = [1.0, math.nan, 1.0]
    series = [make_series(values, f"cell{number}/a", machines="ABB") for number in range(MOST_NAMED + 2)]
    notes: list[str] = []
    assert list(judge_histories(Memory(series=series), policies, [], {}, notes)) == []
    (note,) = notes
    assert "cell0/a (0 of 12 earlier nights)" in note
    assert note.endswith(f"cell{MOST_NAMED - 1}/a (0 of 12 earlier nights) and 2 more.")
