"""The judges of the gate as classifiers, on toy programs that leave a `nightjar.run/1`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nightjar_ci.baselines.baseline import write_convergence
from nightjar_ci.bisect.options.options import BisectOptions
from nightjar_ci.bisect.options.plan import make_plan
from nightjar_ci.bisect.probing.classify_by_gate import default_policies
from nightjar_ci.errors import InputError
from nightjar_ci.settings import read_settings
from tests.ci.bisect.test_command import answer, bisect, program, rungs, state
from tests.ci.nights import CELL, baseline, losses, program_facts, record

__all__ = ["state"]

COUNT = 8
TOY = """
import json, os, pathlib, sys
number, out = int(os.environ["NIGHTJAR_RUNG"][1:]), pathlib.Path(sys.argv[1])
record = json.loads(pathlib.Path(__file__).with_name("record.json").read_text())
{change}
(out / "result.json").write_text(json.dumps(record))
"""


def toy(folder: Path, change: str, **fields: Any) -> tuple[str, ...]:
    """A test that leaves a result, changed by its rung."""
    (folder / "record.json").write_text(record(0, **fields).model_dump_json(by_alias=True))
    return (*program(folder, TOY.format(change=change)), "{out}")


def policies(folder: Path, text: str) -> Path:
    path = folder / "policies.toml"
    path.write_text(f'schema = "nightjar.policies/1"\n{text}')
    return path


def test_performance_is_judged_by_pairs_and_a_short_run_of_the_policy(tmp_path: Path) -> None:
    how = policies(tmp_path, '[[performance]]\njobs = "gpt-*"\nab_args = ["--short"]\nlooks = [3]\nalphas = [0.001]\n'
                             'ok_alphas = [0.01]\n')  # fmt: skip
    change = """
assert sys.argv[2:] == ["--short"]
import random
factor = (1.2 if number >= 5 else 1.0) * random.uniform(0.999, 1.001)
record["samples"][0]["values"] = [0.9] + [0.05 * factor] * 3
"""
    options = ["--rungs", rungs(tmp_path, COUNT), "--judge", "performance", "--policies", how, "--cell", CELL]
    found = answer(*options, *toy(tmp_path, change))
    assert (found["culprits"], found["exit_code"]) == (["n005"], 0)
    assert {probe["outcome"] for probe in found["probes"]} == {"good", "bad"}
    assert any("Slower" in (probe["why"] or "") for probe in found["probes"])
    refused = bisect(*options[:-1], "vit", "--", "true")
    assert refused.returncode == 2
    assert "no performance policy is for the cell 'vit'" in refused.stderr


def test_pairs_that_are_too_noisy_cannot_tell(tmp_path: Path) -> None:
    how = policies(tmp_path, "[[performance]]\nlooks = [3]\nalphas = [1e-7]\nok_alphas = [1e-7]\n")  # no luck decides
    change = "import random; record['samples'][0]['values'] = [0.05 * random.uniform(0.2, 5)] * 4"
    found = answer("--rungs", rungs(tmp_path, 3), "--judge", "performance", "--policies", how,
                   *toy(tmp_path, change))  # fmt: skip
    assert (found["kind"], found["exit_code"]) == ("unbuildable", 4)
    assert {probe["outcome"] for probe in found["probes"]} == {"cannot_tell"}
    assert "Too uncertain to tell whether it is worse by" in found["probes"][0]["why"]


@pytest.mark.parametrize(("rtol", "kind"), [("1e-3", "culprit"), ("0.5", "bad_end_is_good")])
def test_convergence_is_judged_with_the_numbers_of_the_policy(rtol: str, kind: str, tmp_path: Path) -> None:
    how = policies(tmp_path, f'[[convergence]]\ncurve = "loss"\npaired_rtol = {rtol}\n')
    change = "record['curves'][0]['values'][-1] *= 1.1 if number >= 3 else 1.0001"
    found = answer("--rungs", rungs(tmp_path, COUNT), "--judge", "convergence", "--policies", how,
                   *toy(tmp_path, change, values=[5.5, 5.1, 4.8]))  # fmt: skip
    assert found["kind"] == kind
    assert found["culprits"] == (["n003"] if kind == "culprit" else [])


def test_a_cell_with_a_baseline_is_judged_as_on_any_night(tmp_path: Path) -> None:
    write_convergence(tmp_path / "baselines", baseline())
    how = policies(tmp_path, '[[convergence]]\ncurve = "loss"\n')
    change = f"if number >= 6: record['curves'][0]['values'] = {losses(0, shift=0.2)}"
    found = answer("--rungs", rungs(tmp_path, COUNT), "--judge", "convergence", "--policies", how,
                   "--baselines", tmp_path / "baselines", "--cell", CELL, *toy(tmp_path, change))  # fmt: skip
    assert found["culprits"] == ["n006"]
    assert any("baseline" in (probe["why"] or "") for probe in found["probes"])


def test_facts_within_the_tolerance_of_the_policy_are_good(tmp_path: Path) -> None:
    change = """
if number >= 2: record["facts"][0]["memory"]["temp_bytes"] = 101_000
if number >= 6: record["facts"][0]["opcodes"]["dot"]["count"] += 1
"""
    command = toy(tmp_path, change, facts=[program_facts()])
    strict = policies(tmp_path, "[[facts]]\n")
    ladder = rungs(tmp_path, COUNT)
    assert answer("--rungs", ladder, "--judge", "facts", "--policies", strict, *command)["culprits"] == ["n002"]
    strict.write_text(strict.read_text() + 'tolerance = { "memory.temp_bytes" = 0.05 }\n')
    assert answer("--rungs", ladder, "--judge", "facts", "--policies", strict, *command)["culprits"] == ["n006"]


def test_a_result_that_no_policy_judges_cannot_tell(tmp_path: Path) -> None:
    how = policies(tmp_path, '[[facts]]\nprogram = "other"\n')
    found = answer("--rungs", rungs(tmp_path, 3), "--judge", "facts", "--policies", how, *toy(tmp_path, "pass"))
    assert found["kind"] == "unbuildable"
    assert "nothing in its result that a facts policy judges" in found["probes"][0]["why"]


def test_the_usual_policies_are_taken_where_they_are_and_edited_ones_ask_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = BisectOptions(command=("true",), rungs=rungs(tmp_path, 3), judge="performance")
    settings = read_settings()
    plain = make_plan(options, settings, print)
    assert plain.pairs == default_policies(1e-4).for_performance("")
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "policies.toml").write_text('schema = "nightjar.policies/1"\n[[performance]]\ndelta = 0.07\n')
    usual = make_plan(options, settings, print)
    assert usual.pairs is not None
    assert usual.pairs.delta == 0.07
    assert usual.question.id != plain.question.id
    (tmp_path / "ci" / "policies.toml").write_text("nonsense")
    with pytest.raises(InputError):
        make_plan(options, settings, print)
