from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.baselines import (
    make_convergence,
    make_facts,
    read_convergence,
    read_facts,
    write_baselines,
    write_convergence,
)
from nightjar_ci.errors import InputError
from tests.ci.nights import CELL, baseline, losses, program_facts, record


def test_curves_survive_a_round_trip_to_seven_digits(tmp_path: Path) -> None:
    path = write_convergence(tmp_path, baseline())
    assert path == tmp_path / CELL / "convergence.json"
    back = read_convergence(tmp_path, CELL)
    assert back is not None
    assert back.curves[0].seeds[3] == pytest.approx(losses(3), rel=1e-6)
    assert back.data_digest == "d1"
    assert back.command == ("train", "--out", "{out}")


def test_a_seed_is_one_line_of_the_file(tmp_path: Path) -> None:
    lines = write_convergence(tmp_path, baseline()).read_text().splitlines()
    assert len(lines) < 70
    assert sum(line.strip().startswith('"3": [') for line in lines) == 1


@given(st.floats(1e-6, 1e6))
def test_values_are_rounded_to_seven_significant_digits(value: float) -> None:
    runs = [record(seed, values=[value]) for seed in range(10)]
    (curve,) = make_convergence(CELL, ("train",), runs).curves
    assert curve.seeds[0][0] == pytest.approx(value, rel=5.1e-7)
    assert json.dumps(curve.seeds[0][0]) == json.dumps(float(f"{value:.7g}"))


def test_fewer_than_ten_seeds_are_refused() -> None:
    with pytest.raises(InputError, match="9 different seeds, expected at least 10") as caught:
        baseline(9)
    assert "--facts-only" in str(caught.value)


def test_a_diverged_seed_is_refused() -> None:
    runs = [record(seed, status="diverged" if seed == 4 else "completed") for seed in range(10)]
    with pytest.raises(InputError, match="seed 4 diverged"):
        make_convergence(CELL, ("train",), runs)


def test_seeds_of_different_data_are_refused() -> None:
    runs = [record(seed, config={"data_digest": f"d{seed // 9}"}) for seed in range(10)]
    with pytest.raises(InputError, match="differ in environment or data"):
        make_convergence(CELL, ("train",), runs)


def test_seeds_of_different_length_are_refused() -> None:
    runs = [record(seed, values=losses(seed, 100 if seed == 2 else 120)) for seed in range(10)]
    with pytest.raises(InputError, match="of seed 2 has other steps"):
        make_convergence(CELL, ("train",), runs)


def test_facts_are_kept_by_their_key(tmp_path: Path) -> None:
    paths = write_baselines(tmp_path, CELL, ("train",), [record(0), record(1)], facts_only=True)
    assert paths == [tmp_path / CELL / "facts" / "jaxlib-0.10.2-cpu-x1.json"]
    back = read_facts(tmp_path, CELL, "jaxlib-0.10.2-cpu-x1")
    assert back is not None
    assert back.facts == record(0).facts
    assert read_facts(tmp_path, CELL, "jaxlib-0.11.0-cpu-x1") is None


def test_runs_that_were_compiled_differently_make_no_baseline(tmp_path: Path) -> None:
    runs = [record(0), *(record(seed, facts=[program_facts(flops=2e9)]) for seed in range(1, 10))]
    with pytest.raises(InputError, match="compiled differently"):
        make_facts(CELL, runs)
    with pytest.raises(InputError, match="compiled differently"):
        write_baselines(tmp_path, CELL, ("train",), runs, facts_only=False)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_baseline_is_an_input_error(tmp_path: Path) -> None:
    path = write_convergence(tmp_path, baseline())
    path.write_text(path.read_text()[:500])
    with pytest.raises(InputError, match=r"convergence\.json"):
        read_convergence(tmp_path, CELL)
