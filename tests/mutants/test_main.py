"""The session: the choice is seeded and even, wrong options are refused, survivors are listed by place."""

import pytest

from tests.mutants.__main__ import Trial, choose, main, render_survivors
from tests.mutants.sites import Mutant
from tests.mutants.workspace import Outcome


def make_trial(area: str, line: int, outcome: Outcome) -> Trial:
    mutant = Mutant(path="ci/x.py", line=line, kind="and/or", start=0, end=1, before="a\n  and b", after="(a or b)")
    return Trial(area=area, mutant=mutant, tests=("tests/ci/test_x.py",), outcome=outcome)


TRIALS = [make_trial("gate", 1, "killed"), make_trial("gate", 2, "survived"), make_trial("judges", 3, "timed out")]


def test_a_seed_chooses_the_same_mutants_again_and_as_many_in_each_area() -> None:
    chosen = choose(["judges", "gate"], 9, 1)
    assert chosen == choose(["judges", "gate"], 9, 1) != choose(["judges", "gate"], 9, 2)
    assert [area for area, _ in chosen] == ["judges"] * 5 + ["gate"] * 4
    assert len({(mutant.path, mutant.start, mutant.end) for _, mutant in chosen}) == 9


def test_a_survivor_is_a_place_and_what_became_of_what() -> None:
    assert render_survivors(TRIALS) == "ci/x.py:2: and/or: a and b -> (a or b) (survived)"


def test_a_file_that_is_not_python_has_no_mutants(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--at", "docker/python-layer.sh:1"]) == 3
    assert capsys.readouterr().err == (
        "error: docker/python-layer.sh is not a Python module: other files have no mutants\n"
    )
