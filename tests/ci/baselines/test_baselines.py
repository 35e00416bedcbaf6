"""The committed baselines: ten seeds of each workload, each better than trivial answers."""

from pathlib import Path

import pytest

from nightjar_ci.baselines.baseline import read_convergence
from nightjar_ci.images.tree import find_checkout

FOLDER = find_checkout(Path(__file__).parent) / "ci" / "baselines"
TRAINED = sorted(path.parent.name for path in FOLDER.glob("*_tiny-train-*/convergence.json"))
# sixty steps of three hundred: they know how often each letter occurs, and not yet what follows it
SHORT = {"gpt_tiny-train-cpu-bf16-dp1": {"trivial.bigram_loss"}, "gpt_tiny-train-cpu-fp8-dp1": {"trivial.bigram_loss"}}


@pytest.mark.parametrize("cell", TRAINED)
def test_each_of_ten_seeds_beats_every_trivial_answer(cell: str) -> None:
    baseline = read_convergence(FOLDER, cell)
    assert baseline is not None
    curves = {curve.name: curve for curve in baseline.curves}
    trivial = {key: value for key, value in baseline.config.items() if key.startswith("trivial.")}
    for key in SHORT.get(cell, ()):
        del trivial[key]
    assert trivial
    for key, value in trivial.items():
        score = curves[f"eval_{key.rpartition('_')[2]}"]
        finals = [values[-1] for values in score.seeds.values()]
        assert len(finals) == 10
        assert isinstance(value, float)
        assert all(final < value if score.better == "lower" else final > value for final in finals), key
