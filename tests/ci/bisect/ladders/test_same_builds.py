"""Rungs that are the same build as the one before are merged, so that no test separates them."""

from pathlib import Path

import pytest

from nightjar_ci.bisect.ladders.commits import make_commit_ladder
from nightjar_ci.bisect.ladders.rung import Rung, merge_same_builds
from nightjar_ci.errors import InputError
from tests.ci.bisect.ladders.test_commits import commit, repository, run_git
from tests.ci.bisect.test_command import answer

__all__ = ["repository"]


def test_locks_are_merged_where_every_pin_is_equal_and_only_there() -> None:
    locks = [{"jax": "1"}, {"jax": "1"}, {"jax": "1", "numpy": "2"}, {"jax": "2", "numpy": "2"}, {"jax": "1"}]
    rungs = [Rung(kind="packages", name=f"n{number}", pins=pins) for number, pins in enumerate(locks)]
    kept, notes = merge_same_builds(rungs)
    assert [rung.name for rung in kept] == ["n0", "n2", "n3", "n4"]
    assert notes == ("n1 is the same build as n0.",)


def test_what_is_not_known_is_not_called_the_same() -> None:
    unknown = [Rung(kind="packages", name="a"), Rung(kind="packages", name="b"), Rung(kind="commit", name="c")]
    assert merge_same_builds(unknown) == (tuple(unknown), ())


def test_commits_that_record_the_same_files_are_one_rung(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("3", "3", "3", "4"):  # the first three change nothing
        commit(repository, value)
    ladder = make_commit_ladder(repository, "first", "main")
    assert [rung.name.partition(" ")[2] for rung in ladder.rungs] == ["Set 1", "Set 2", "Merge side", "Set 3", "Set 4"]
    assert ladder.notes[-1].count("Set 3") == 4
    test = tmp_path / "test.py"
    test.write_text("import pathlib, sys; sys.exit(int(pathlib.Path('value').read_text()) >= 3)")
    found = answer("--repo", repository, "--good", "first", "--bad", "main", "--deterministic", "--", "python", test)
    assert found["culprits"] == [ladder.rungs[3].name]
    assert run_git(repository, "rev-parse", "main~4").startswith(found["culprits"][0].partition(" ")[0])
    with pytest.raises(InputError, match="hold the same files"):
        make_commit_ladder(repository, "main~4", "main~2")
