"""The bench of plants: its repository is what it says, and its answers are judged strictly."""

from pathlib import Path

import pytest

from nightjar_ci.bisect.ladders.commits import make_branch_ladder, make_commit_ladder
from nightjar_ci.bisect.ladders.several import Pin, complete_ends, make_merged_ladder
from tests.bench.bisect import two_repositories
from tests.bench.bisect.plants import git, is_right, make_repository, plants
from tests.machine import asks


@asks("git")
def test_every_culprit_is_a_rung_of_its_ladder_or_of_a_branch_that_it_merged(tmp_path: Path) -> None:
    repository = make_repository(tmp_path)
    assert int(git(repository, "rev-list", "--count", "--all")) >= 300
    chosen = plants()
    assert len(chosen) == len(set(chosen)) == 20
    ladders = {ends: make_commit_ladder(repository, *ends) for ends in {(plant.good, plant.bad) for plant in chosen}}
    merges = [rung.source for rung in ladders["start", "main"].rungs if rung.note == "merge"]
    branches = [ladder for merge in merges if (ladder := make_branch_ladder(repository, merge)) is not None]
    inside = {rung.name.partition(" ")[2] for ladder in branches for rung in ladder.rungs[1:]}
    for plant in chosen:
        names = {rung.name.partition(" ")[2] for rung in ladders[plant.good, plant.bad].rungs}
        assert set(plant.culprits) <= names | inside


@asks("git")
@pytest.mark.slow
def test_every_culprit_of_two_repositories_is_a_rung_and_the_last_one_that_the_failure_needs(tmp_path: Path) -> None:
    app, lib = two_repositories.make_repositories(tmp_path)
    folders, pin = {"app": app, "lib": lib}, Pin(holder="app", path=two_repositories.PIN)
    chosen = two_repositories.plants()
    assert len(set(chosen)) == len(chosen) == 20
    for plant in chosen:
        pins = [] if plant.heads else [pin]
        named = {"start": {"app": "start"}, "main": {"app": "main"}}
        if plant.heads:
            named = {end: {"app": end, "lib": end} for end in named}
        old, new = (complete_ends(folders, pins, revisions, "--good") for revisions in named.values())
        ladder = make_merged_ladder(folders, pins, old, new)
        names = [two_repositories.SHORT_NAME.sub("", rung.name) for rung in ladder.rungs]
        assert plant.culprit == max(plant.needed, key=names.index)


def test_an_answer_that_names_one_commit_too_many_or_too_few_is_wrong() -> None:
    one, several = (next(plant for plant in plants() if len(plant.culprits) == length) for length in (1, 8))
    assert is_right(one, list(one.culprits))
    assert not is_right(one, [*one.culprits, "m239"])
    assert not is_right(several, list(several.culprits[1:]))
    assert not is_right(one, [])
