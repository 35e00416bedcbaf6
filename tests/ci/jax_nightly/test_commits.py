from pathlib import Path

import pytest

from nightjar_ci.errors import NightjarError
from nightjar_ci.jax_nightly import commits
from nightjar_ci.jax_nightly.commits import find_jax_commit, find_xla_commit
from nightjar_ci.jax_nightly.days import read_days
from tests.ci.jax_nightly.wheels import fill_day, serve


def test_the_commit_is_read_from_the_wheel_that_the_index_means_and_from_no_other(tmp_path: Path) -> None:
    fill_day(tmp_path / "index", "2026-11-20")
    fill_day(tmp_path / "other", "2026-11-20", commit="e" * 40)
    with serve(tmp_path / "index") as index:
        (day,) = read_days(index)
        assert find_jax_commit(day) == "a" * 40
        name = day.files["jax"][0].name
        (tmp_path / "other/jax" / name).replace(tmp_path / "index/jax" / name)
        with pytest.raises(NightjarError, match="SHA-256"):
            find_jax_commit(day)


def test_the_commit_of_xla_is_read_from_the_tree_of_jax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{'a' * 40}.bzl").write_text(f'# To update XLA:\nXLA_COMMIT = "{"b" * 40}"\nXLA_SHA256 = "0"\n')
    with serve(tmp_path) as url:
        monkeypatch.setattr(commits, "_REVISION", url + "{commit}.bzl")
        assert find_xla_commit("a" * 40) == "b" * 40
        assert find_xla_commit("c" * 40) is None
