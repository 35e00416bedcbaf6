"""The session: the choice is seeded and within its rooms, wrong places are refused, survivors are listed by place."""

import pytest
from rich.console import Console

from tests.mutants.__main__ import Trial, choose, main, render_survivors
from tests.mutants.sites import Mutant
from tests.mutants.workspace import Outcome


def make_trial(line: int, outcome: Outcome) -> Trial:
    mutant = Mutant(path="ci/x.py", line=line, kind="and/or", start=0, end=1, before="a[b]\n  and c", after="(a or c)")
    return mutant, outcome


def test_a_seed_chooses_the_same_mutants_again_from_these_rooms() -> None:
    rooms = ["ci/judges", "profiling/hlo"]
    chosen = choose(rooms, 9, 1)
    assert chosen == choose(rooms, 9, 1) != choose(rooms, 9, 2)
    assert len({(mutant.path, mutant.start, mutant.end) for mutant in chosen}) == 9
    assert {"/".join(mutant.path.split("/")[::2][:2]) for mutant in chosen} == set(rooms)


def test_a_survivor_is_a_place_and_what_became_of_what() -> None:
    console = Console(width=120, record=True)
    console.print(render_survivors([make_trial(1, "killed"), make_trial(2, "survived"), make_trial(3, "timed out")]))
    text = console.export_text()
    assert [part.strip() for part in text.splitlines()[4].split("│")[1:-1]] == [
        "ci/x.py:2", "and/or", "a[b] and c", "(a or c)", "survived"
    ]  # fmt: skip
    assert "ci/x.py:1" not in text
    assert "ci/x.py:3" not in text


def test_a_place_without_mutants_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--at", "docker/python-layer.sh:1"]) == 3
    assert "docker/python-layer.sh is not a Python module" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["--room", "ci/absent"])
    assert "nothing to mutate" in capsys.readouterr().err
