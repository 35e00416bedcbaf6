"""The committed baselines: ten seeds of each workload, each better than trivial answers."""

from pathlib import Path

import pytest

from nightjar_ci.baselines.baseline import add_elsewhere, make_convergence, make_facts, read_convergence
from nightjar_ci.errors import InputError
from nightjar_ci.images.tree import find_checkout
from tests.ci.nights import CELL, record

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


def test_what_makes_no_baseline_is_named_by_its_seed() -> None:
    runs = [record(seed) for seed in range(10)]
    with pytest.raises(InputError, match=r"9 different seeds, expected at least 10\."):
        make_convergence(CELL, ("train",), runs[:9])
    for wrong in (record(3, config={"data_digest": "other"}), record(3, jaxlib="0.0.1")):
        with pytest.raises(InputError, match="seeds 0 and 3 differ in environment or data"):
            make_convergence(CELL, ("train",), [*runs[:3], wrong, *runs[4:]])
    with pytest.raises(InputError, match="seed 2 diverged: a baseline needs completed runs"):
        make_convergence(CELL, ("train",), [*runs[:2], record(2, status="diverged"), *runs[3:]])
    elsewhere = make_convergence(CELL, ("train",), runs)
    with pytest.raises(InputError, match="curve 'loss' of seed 1 has other steps"):
        add_elsewhere(elsewhere, [record(1, jaxlib="0.0.1", values=[1.0, 2.0], steps=[0, 1])])
    with pytest.raises(InputError, match="no run to make a baseline from"):
        make_facts(CELL, [])
    with pytest.raises(InputError, match="seeds 0 and 1 were compiled differently"):
        make_facts(CELL, [record(0), record(1, facts=[])])
