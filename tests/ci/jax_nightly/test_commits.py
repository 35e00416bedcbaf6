from pathlib import Path

import pytest

from nightjar_ci.errors import NightjarError
from nightjar_ci.jax_nightly.commits import find_jax_commit
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
