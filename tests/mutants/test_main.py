"""The session: the choice is seeded and even, wrong options are refused, survivors are listed by place."""

import pytest

from tests.mutants.__main__ import Trial, choose, list_line, main, render_survivors
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


def test_every_mutant_of_a_line_can_be_planted() -> None:
    ((area, first), *_) = choose(["judges"], 1, 1)
    mutants = [mutant for _, mutant in list_line(first.place)]
    assert area == list_line(first.place)[0][0] == "judges"
    assert first in mutants
    assert {mutant.line for mutant in mutants} == {first.line}
    assert len(list_line(first.path)) > len(mutants)


def test_a_survivor_is_a_place_and_what_became_of_what() -> None:
    assert render_survivors(TRIALS) == "ci/x.py:2: and/or: a and b -> (a or b) (survived)"


@pytest.mark.parametrize("arguments", [["--count", "0"], ["--jobs", "0"], ["--only", "moon"], ["--at", "noxfile.py:1"]])
def test_wrong_options_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--at", "ci/nightjar_ci/absent.py:3"]) == 3
    assert "ci/nightjar_ci/absent.py" in capsys.readouterr().err


def test_a_file_that_is_not_python_has_no_mutants(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--at", "docker/python-layer.sh:1"]) == 3
    assert capsys.readouterr().err == (
        "error: docker/python-layer.sh is not a Python module: other files have no mutants\n"
    )
