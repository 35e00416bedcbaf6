"""Histories through the gate and a real store, night after night."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from nightjar_ci.formats.night_folder import read_night, write_night
from nightjar_ci.formats.night_results import read_night_results
from nightjar_ci.formats.policy import Policies
from nightjar_ci.formats.series import Series
from nightjar_ci.formats.verdict import Verdict
from nightjar_ci.gate.gate import find_exit_code, gate_night
from nightjar_ci.gate.history import MOST_NAMED, Memory, judge_histories
from nightjar_ci.settings import read_settings
from nightjar_ci.store import Store, open_store
from nightjar_ci.store.folder import import_night
from tests.ci.nights import make_night, outcome, record

POLICIES = Policies.model_validate({"schema": "nightjar.policies/1", "history": [{}]})
START = datetime(2026, 1, 1, 3, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path / "state")}))
    yield opened
    opened.close()


def leave_night(folder: Path, number: int, seconds: float, machine: str, jax: str) -> Path:
    started = (START + timedelta(days=number)).isoformat()
    one = record(0, values=[3.0, 2.0], step_times=(0.9, seconds, seconds), facts=[], jaxlib=jax)
    cpu = one.environment.cpu.model_copy(update={"model": machine})
    there = one.environment.model_copy(update={"cpu": cpu})
    night = f"{started[:10]}T0300-0000"
    made = make_night(folder / night, [(outcome(), one.model_copy(update={"environment": there}))], night)
    write_night(made, read_night(made).model_copy(update={"started_at": started, "finished_at": started}))
    return made


def play(
    folder: Path, store: Store, machines: Sequence[str], levels: Sequence[float], gated: int, jax: Sequence[str] = ()
) -> list[tuple[int, Verdict]]:
    """Exit code and verdict of the last `gated` nights, each gated and remembered before the next."""
    rng = np.random.default_rng(0)
    told = []
    for number, (machine, level) in enumerate(zip(machines, levels, strict=True)):
        seconds = 0.05 * level * float(np.exp(rng.normal(0, 0.01)))
        night = leave_night(folder, number, seconds, machine, jax[number] if jax else "0.10.2")
        if number < len(machines) - gated:
            import_night(store, night)
            continue
        verdicts = gate_night(read_night_results(night), POLICIES, folder / "none", store)
        (verdict,) = [one for one in verdicts.verdicts if one.judge == "history"]
        told.append((find_exit_code(read_night_results(night), verdicts), verdict))
    return told


def test_in_a_pool_of_runners_each_kind_has_its_history_and_a_regression_stands_on_its_own(
    tmp_path: Path, store: Store
) -> None:
    machines = ["AB"[number % 3 == 2] for number in range(60)]  # A A B
    levels = [1.3 if machine == "B" else 1.0 for machine in machines]
    levels[48:] = [3.0 if machine == "A" else 1.3 for machine in machines[48:]]
    told = play(tmp_path, store, machines, levels, 12)
    codes: dict[str, list[int]] = {"A": [], "B": []}
    for machine, (code, _) in zip(machines[48:], told, strict=True):
        codes[machine].append(code)
    assert codes["A"] == [4, 4, *[1] * 6]
    assert 1 not in codes["B"]
    assert told[0][1].details[0] == "compared with 33 nights on the same machine; 16 on others are left out"
    assert told[-2][1].policy["since"] == "2026-02-18T0300-0000"


def test_the_first_night_on_another_machine_is_named(tmp_path: Path, store: Store) -> None:
    for number in range(15):
        import_night(store, leave_night(tmp_path, number, 0.05, "A", "0.10.2"))
    night = leave_night(tmp_path, 15, 0.05, "B", "0.10.2")
    (verdict,) = gate_night(read_night_results(night), POLICIES, tmp_path / "none", store).verdicts
    assert verdict.status == "cannot_tell"
    assert "ran on another machine than before, 1 of the 13 nights" in verdict.explanation


def test_another_jaxlib_on_the_same_machine_is_compared_across(tmp_path: Path, store: Store) -> None:
    versions = ["0.10.1"] * 20 + ["0.10.2"] * 3
    told = play(tmp_path, store, ["A"] * 23, [1.0] * 20 + [3.0] * 3, 3, versions)
    assert [code for code, _ in told] == [4, 4, 1]
    assert told[-1][1].policy["since"] == "2026-01-21T0300-0000"


def test_a_history_is_judged_from_its_thirteenth_night_on(tmp_path: Path, store: Store) -> None:
    told = play(tmp_path, store, ["A"] * 15, [1.0] * 12 + [3.0] * 3, 3)
    assert [code for code, _ in told] == [4, 4, 1]


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
    values = np.array([0.05, 0.05, tonight])
    series = Series(
        name="cell/step_time", unit="s", better="lower", nights=("a", "b", "c"), values=values, environments=("A",) * 3
    )
    notes: list[str] = []
    assert list(judge_histories(Memory(series=(series,)), policies, [], {}, notes)) == []
    expected = "Too few nights for a judged history: cell/step_time (2 of 12 earlier nights)."
    assert notes == [expected][:waiting]


def test_a_note_counts_the_nights_of_tonights_machine() -> None:
    policies = Policies.model_validate({"schema": "nightjar.policies/1", "history": [{"measure": "*"}]})
    nights, values = ("a", "b", "c"), np.array([1.0, math.nan, 1.0])
    series = [
        Series(
            name=f"cell{number}/a", unit="s", better="lower", nights=nights, values=values, environments=("A", "B", "B")
        )
        for number in range(MOST_NAMED + 2)
    ]
    notes: list[str] = []
    assert list(judge_histories(Memory(series=series), policies, [], {}, notes)) == []
    (note,) = notes
    assert "cell0/a (0 of 12 earlier nights)" in note
    assert note.endswith(f"cell{MOST_NAMED - 1}/a (0 of 12 earlier nights) and 2 more.")
