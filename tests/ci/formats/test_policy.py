import re
from pathlib import Path

import pytest

from nightjar_ci.errors import InputError
from nightjar_ci.formats.policy import Policies, read_policies
from tests.places import ROOT


def policies(tmp_path: Path, text: str) -> Policies:
    path = tmp_path / "policies.toml"
    path.write_text(f'schema = "nightjar.policies/1"\n{text}')
    return read_policies(path)


def test_the_documented_example_is_read(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "policies.md").read_text()
    found = re.search(r"```toml\n(.*?)```", page, re.DOTALL)
    assert found is not None
    (tmp_path / "policies.toml").write_text(found[1])
    read = read_policies(tmp_path / "policies.toml")
    sharded = read.for_curve("gpt_tiny-train-cpu-f32-dp2.fsdp2.tp2", "loss")
    assert sharded is not None
    assert sharded.same_as == "gpt_tiny-train-cpu-f32-dp1"


def test_the_documented_keys_are_the_ones_that_exist() -> None:
    page = (ROOT / "docs" / "reference" / "policies.md").read_text()
    documented = set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE))
    from nightjar_ci.formats.policy import (
        ConvergencePolicy,
        FactsPolicy,
        HistoryPolicy,
        NightPolicy,
        PerformancePolicy,
        SuitePolicy,
    )

    tables = (ConvergencePolicy, FactsPolicy, PerformancePolicy, HistoryPolicy, SuitePolicy, NightPolicy)
    known = {name for table in tables for name in table.model_fields}
    assert documented == known


def test_the_first_table_that_matches_is_used(tmp_path: Path) -> None:
    read = policies(tmp_path, '[[convergence]]\njobs = "vit*"\nmargin = 0.2\n[[convergence]]\nmargin = 0.1\n')
    special, general = read.for_curve("vit-dp1", "loss"), read.for_curve("gpt-dp1", "loss")
    assert special is not None
    assert general is not None
    assert (special.margin, general.margin) == (0.2, 0.1)


def test_a_curve_that_no_table_names_has_no_policy(tmp_path: Path) -> None:
    read = policies(tmp_path, '[[convergence]]\ncurve = "loss"\n')
    assert read.for_curve("gpt-dp1", "accuracy") is None
    assert read.for_performance("gpt-dp1") is None


def test_a_history_whose_floor_is_infinite_is_not_judged(tmp_path: Path) -> None:
    read = policies(tmp_path, '[[history]]\njobs = "*-mesh-*"\nfloor = inf\n[[history]]\n')
    assert read.for_history("gpt-mesh-dp8", "step_time") is None
    assert read.for_history("gpt-train-dp8", "step_time") is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[convergence]]\nmargim = 0.1\n", "unknown key 'margim'"),
        ("[[convergence]]\nmargim = 0.1\n", "did you mean 'margin'"),
        ('[[convergence]]\nsame_as = "other"\n', "same_as and rtol belong together"),
        ("[[convergence]]\nwindow = 3\n", "window belongs to same_as"),
        ("[[convergence]]\nalpha = 0\n", "alpha"),
        ("[[performance]]\nlooks = [4, 8]\n", "one length"),
        ("[[performance]]\nlooks = [8, 4, 12]\n", "increase"),
        ("[[facts]]\ntolerance = { flops = -0.1 }\n", "tolerance"),
        ("[[facts]]\ngrowth = { compile_cpu_time = 0.3 }\n", "growth is gone: a [[history]] judges"),
        ("[[speed]]\n", "unknown key 'speed'"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        policies(tmp_path, text)
