"""What a dry run expects, beside what the bisection then takes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nightjar_ci.bisect.probing.measured_cost import measure_own_bytes, measure_package_bytes
from nightjar_ci.bisect.search.estimate_cost import estimate
from nightjar_ci.bisect.search.types import SearchSettings
from tests.ci.bisect.test_command import answer, bisect, program, rungs


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def test_times_are_those_that_were_measured_and_none_is_made_up(tmp_path: Path) -> None:
    command = ("--rungs", rungs(tmp_path), "--deterministic", *program(tmp_path, "sys.exit(n >= 13)"))
    before = bisect("--dry-run", *command).stdout
    assert before.count("is not known: none like it was measured") == 2
    assert "tests.\n" in before
    answer(*command)
    expected = json.loads(bisect("--dry-run", "--json", *command).stdout)["expected"]
    lines = (tmp_path / "state").glob("bisections/*/probes.jsonl")
    tests = sorted(json.loads(line)["test_s"] for path in lines for line in path.read_text().splitlines())
    assert tests[0] <= expected["test_s"] <= tests[-1]
    assert "A run of the test takes" in bisect("--dry-run", *command).stdout


def test_a_pair_is_two_runs_and_programs_are_read_besides() -> None:
    settings = SearchSettings(metric="lower", reference="first")
    plain, sensed = (estimate(64, settings, 0.0, 1.0, lambda _: True, sensors=sensors) for sensors in (False, True))
    assert plain.duration_s == 2 * plain.tests
    assert sensed.duration_s is not None
    assert sensed.duration_s == plain.duration_s + 8


def test_what_another_file_links_to_takes_no_room_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"x" * 100_000)
    (tmp_path / "environment").mkdir()
    os.link(tmp_path / "cache", tmp_path / "environment" / "shared")
    assert measure_own_bytes(tmp_path / "environment") == 0
    (tmp_path / "environment" / "own").write_bytes(b"x" * 100_000)
    assert measure_own_bytes(tmp_path / "environment") >= 100_000


def test_the_packages_that_a_ladder_moves_are_what_the_cache_grows_by(tmp_path: Path) -> None:
    for name, size in (("jaxlib", 3000), ("numpy", 500)):
        info = tmp_path / "lib" / "python3.11" / "site-packages" / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text(f"{name}/a.so,sha256=x,{size}\n{name}-1.0.dist-info/RECORD,,\n")
    assert measure_package_bytes(tmp_path, {"jaxlib"}) == 3000
    assert measure_package_bytes(tmp_path, {"jaxlib", "numpy", "other"}) == 3500


def test_both_rungs_of_a_pair_are_built() -> None:
    settings = SearchSettings(metric="lower", reference="first")
    assert estimate(2, settings, 10.0, 1.0, lambda _: False).builds == 2


@pytest.mark.slow
def test_what_a_bisection_says_of_its_work_counts_both_sides_of_a_pair(tmp_path: Path) -> None:
    test = program(tmp_path, "print(f'x={1 + (n >= 13)}')")
    found = answer("--rungs", rungs(tmp_path), "--prepare", "true", "--metric", "x", "--no-sensors", *test)
    touched = {probe["rung"] for probe in found["probes"]} | {probe["against"] for probe in found["probes"]}
    assert found["builds"] == len(touched)
    assert all(probe["test_s"] > 0 for probe in found["probes"])
