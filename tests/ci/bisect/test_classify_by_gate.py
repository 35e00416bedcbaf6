"""The judges of the gate as classifiers, on toy programs that leave a `nightjar.run/1`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nightjar_ci.baselines.baseline import write_convergence
from nightjar_ci.bisect.options.options import BisectOptions
from nightjar_ci.bisect.options.plan import make_plan
from nightjar_ci.bisect.probing.classify_by_gate import GateJudge, _against_good_end, default_policies
from nightjar_ci.errors import InputError
from nightjar_ci.formats.policy import ConvergencePolicy, Policies
from nightjar_ci.settings import read_settings
from tests.ci.bisect.test_command import answer, program, rungs
from tests.ci.nights import CELL, baseline, losses, outcome, program_facts, record

COUNT = 8
TOY = """
import json, os, pathlib, sys
number, out = int(os.environ["NIGHTJAR_RUNG"][1:]), pathlib.Path(sys.argv[1])
record = json.loads(pathlib.Path(__file__).with_name("record.json").read_text())
{change}
(out / "result.json").write_text(json.dumps(record))
"""


def toy(folder: Path, change: str, **fields: Any) -> tuple[str, ...]:
    (folder / "record.json").write_text(record(0, **fields).model_dump_json(by_alias=True))
    return (*program(folder, TOY.format(change=change)), "{out}")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ci").mkdir()
    return tmp_path


def write_policies(text: str) -> Path:
    path = Path("ci", "policies.toml")
    path.write_text(f'schema = "nightjar.policies/1"\n{text}')
    return path


@pytest.mark.parametrize(
    ("rtol", "worse", "kind"),
    [
        ("1e-3", 1.1, "culprit"),
        ("0.5", 1.1, "bad_end_is_good"),
        ("", 1.00025, "culprit"),
        ("", 1.00019, "bad_end_is_good"),
    ],
)
def test_convergence_is_judged_with_the_numbers_of_the_policy(
    rtol: str, worse: float, kind: str, tmp_path: Path
) -> None:
    if rtol:  # else the default, 1e-4
        write_policies(f'[[convergence]]\ncurve = "loss"\npaired_rtol = {rtol}\n')
    change = f"record['curves'][0]['values'][-1] *= {worse} if number >= 3 else 1.0001"
    found = answer("--rungs", rungs(tmp_path, COUNT), "--like", "any/convergence",
                   *toy(tmp_path, change, values=[5.5, 5.1, 4.8]))  # fmt: skip
    assert found["kind"] == kind
    assert found["culprits"] == (["n003"] if kind == "culprit" else [])


def test_a_cell_with_a_baseline_is_judged_as_on_any_night(tmp_path: Path) -> None:
    write_convergence(tmp_path / "ci" / "baselines", baseline())
    write_policies('[[convergence]]\ncurve = "loss"\n')
    change = f"if number >= 6: record['curves'][0]['values'] = {losses(0, shift=0.2)}"
    found = answer("--rungs", rungs(tmp_path, COUNT), "--like", CELL, *toy(tmp_path, change))  # fmt: skip
    assert found["culprits"] == ["n006"]
    assert any("baseline" in (probe["why"] or "") for probe in found["probes"])


def test_facts_within_the_tolerance_of_the_policy_are_good(tmp_path: Path) -> None:
    change = """
if number >= 2: record["facts"][0]["memory"]["temp_bytes"] = 101_000
if number >= 6: record["facts"][0]["opcodes"]["dot"]["count"] += 1
"""
    command = toy(tmp_path, change, facts=[program_facts()])
    strict = write_policies("[[facts]]\n")
    ladder = rungs(tmp_path, COUNT)
    assert answer("--rungs", ladder, "--like", "any/facts", *command)["culprits"] == ["n002"]
    strict.write_text(strict.read_text() + 'tolerance = { "memory.temp_bytes" = 0.05 }\n')
    assert answer("--rungs", ladder, "--like", "any/facts", *command)["culprits"] == ["n006"]


def test_a_result_that_no_policy_judges_cannot_tell(tmp_path: Path) -> None:
    write_policies('[[facts]]\nprogram = "other"\n')
    found = answer("--rungs", rungs(tmp_path, 3), "--like", "any", *toy(tmp_path, "pass"))
    assert found["kind"] == "unbuildable"
    assert "nothing in its result that a policy judges" in found["probes"][0]["why"]


def test_policies_of_the_project_are_taken_and_edited_ones_ask_again(tmp_path: Path) -> None:
    options = BisectOptions(command=("true",), rungs=rungs(tmp_path, 3), like=f"{CELL}/facts")
    plain = make_plan(options, read_settings(), print)
    assert plain.classifier == GateJudge(judges=("facts",), policies=default_policies(), cell=CELL)
    assert plain.search.deterministic
    how = write_policies("[[facts]]\n")
    usual = make_plan(options, read_settings(), print)
    assert usual.question.id != plain.question.id
    both = make_plan(replace(options, like=CELL), read_settings(), print)
    assert isinstance(both.classifier, GateJudge)
    assert (both.classifier.judges, both.search.deterministic) == (("facts", "convergence"), False)
    how.write_text("nonsense")
    with pytest.raises(InputError):
        make_plan(options, read_settings(), print)


@pytest.mark.parametrize(
    ("given", "rtol", "window"),
    [
        ({"same_as": "other-cell", "rtol": 1e-3, "paired_rtol": 0.5, "early_steps": 9}, 1e-3, None),
        ({"same_as": "other-cell", "rtol": 1e-3, "window": 7}, 1e-3, 7),
        ({"paired_rtol": 2e-3, "early_rtol": 0.5, "early_steps": 9}, 2e-3, None),
        ({"early_rtol": 3e-3, "early_steps": 9}, 3e-3, 9),
        ({}, 1e-4, 25),
    ],
)
def test_the_good_end_takes_the_place_of_a_sibling_or_a_baseline(
    given: dict[str, Any], rtol: float, window: int | None
) -> None:
    expected = {"curve": "loss", **given, "same_as": "the good end", "rtol": rtol, "window": window}
    assert _against_good_end(ConvergencePolicy(**given)) == ConvergencePolicy(**expected)


def test_the_policies_of_the_cell_judge_a_rung_and_a_result_is_needed(tmp_path: Path) -> None:
    """The step takes 100,000 bytes at the good end and one more here, which the policy of this cell allows."""
    entries = [{"jobs": CELL, "tolerance": {"memory.*": 0.1}}, {}]
    policies = Policies.model_validate({"schema": "nightjar.policies/1", "facts": entries})
    good_end = record(facts=[program_facts()])
    more = program_facts(memory={**program_facts()["memory"], "temp_bytes": 100_001})
    (tmp_path / "result.json").write_text(record(facts=[more]).model_dump_json(by_alias=True))
    for cell, told in ((CELL, "good"), ("other", "bad")):
        found = GateJudge(judges=("facts",), policies=policies, cell=cell).read(outcome(), tmp_path, good_end)
        assert (found.answer, bool(found.why)) == (told, told == "bad")
    (tmp_path / "result.json").unlink()
    found = GateJudge(judges=("facts",), policies=policies).read(outcome(), tmp_path, good_end)
    assert (found.answer, found.why) == ("cannot_tell", f"it left no nightjar.run/1 in {tmp_path}")
