from pathlib import Path

import pytest

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.jax_nightly import days
from nightjar_ci.jax_nightly.days import (
    NAMES,
    Target,
    choose_day,
    find_gaps,
    find_jax_commit,
    find_xla_commit,
    read_days,
)
from tests.ci.jax_nightly.wheels import PYTHONS, fill_day, fill_jax, serve

TARGETS = [
    Target(flavor, python, machine)
    for python in PYTHONS
    for machine in ("x86_64", "aarch64")
    for flavor in ("cpu", "cuda12", "cuda13")
]


def test_the_newest_day_with_every_wheel_is_chosen_and_the_incomplete_ones_are_named(tmp_path: Path) -> None:
    for date in ("2026-11-18", "2026-11-19", "2026-11-20"):
        fill_day(tmp_path, date, lacking="cp313-cp313-manylinux_2_27_aarch64" if date == "2026-11-20" else "")
    with serve(tmp_path) as index:
        days = read_days(index)
    assert [day.date for day in days] == ["2026-11-18", "2026-11-19", "2026-11-20"]
    choice = choose_day(days, TARGETS)
    assert choice.day.date == "2026-11-19"
    assert dict(choice.day.versions) == dict.fromkeys(NAMES, "2.0.0.dev20261119")
    (message,) = choice.refused
    assert message == (
        "JAX of 2026-11-20 is incomplete: no wheel of jaxlib for Python 3.13 on aarch64, "
        "jax-cuda12-plugin for Python 3.13 on aarch64, jax-cuda13-plugin for Python 3.13 on aarch64."
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_day_without_a_package_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    fill_day(tmp_path, "2026-11-20")
    for path in (tmp_path / name).glob("*.whl"):
        path.unlink()
    with serve(tmp_path) as index:
        days = read_days(index)
    with pytest.raises(InputError, match=f"JAX of 2026-11-20 is incomplete: no wheel of {name}\\b"):
        choose_day(days, TARGETS, "2026-11-20")
    with pytest.raises(InputError, match=f"no day is complete.*{name}"):
        choose_day(days, TARGETS)


def test_a_date_that_the_index_lacks_is_refused_with_those_that_it_has(tmp_path: Path) -> None:
    fill_day(tmp_path, "2026-11-19")
    fill_day(tmp_path, "2026-11-20")
    with (
        serve(tmp_path) as index,
        pytest.raises(InputError, match="no JAX of 2026-10-01: it has 2026-11-19 to 2026-11-20"),
    ):
        choose_day(read_days(index), TARGETS, "2026-10-01")


def test_without_a_named_index_nothing_is_asked_and_the_hint_says_where_its_address_stands() -> None:
    with pytest.raises(InputError, match="NIGHTJAR_NIGHTLY_INDEX is not set") as caught:
        read_days(None)
    assert "installation.html" in str(caught.value.hint)


def test_an_index_that_is_down_is_a_failed_tool_and_one_of_releases_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NightjarError, match=r"127\.0\.0\.1:9") as caught:
        read_days("http://127.0.0.1:9/index")
    assert caught.value.exit_code == 3
    assert "NIGHTJAR_NIGHTLY_INDEX" in str(caught.value.hint)
    fill_jax(tmp_path, "1.0", "a" * 40)
    with serve(tmp_path) as index, pytest.raises(InputError, match="has no nightly wheel of jax"):
        read_days(index)


def test_the_newest_wheels_of_a_day_count_where_its_version_changed(tmp_path: Path) -> None:
    fill_day(tmp_path, "2026-11-20")
    fill_jax(tmp_path, "2.1.0.dev20261120", "b" * 40)
    with serve(tmp_path) as index:
        (day,) = read_days(index)
    assert set(day.versions.values()) == {"2.1.0.dev20261120"}
    assert find_gaps(day, TARGETS) == ()


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("jax_cuda13_plugin-*-cp313-*_aarch64", ["cuda13 3.13 aarch64"]),
        ("jax_cuda12_pjrt-*_x86_64", ["cuda12 3.12 x86_64", "cuda12 3.13 x86_64"]),
        ("jaxlib-*-cp312-*_x86_64", ["cpu 3.12 x86_64", "cuda12 3.12 x86_64", "cuda13 3.12 x86_64"]),
    ],
)
def test_a_missing_wheel_refuses_the_day_for_the_images_that_need_it(
    tmp_path: Path, name: str, refused: list[str]
) -> None:
    fill_day(tmp_path, "2026-11-20")
    next(tmp_path.rglob(f"{name}.whl")).unlink()
    with serve(tmp_path) as index:
        (day,) = read_days(index)
    lacking = [f"{each.flavor} {each.python} {each.machine}" for each in TARGETS if find_gaps(day, [each])]
    assert sorted(lacking) == refused


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
        monkeypatch.setattr(days, "_REVISION", url + "{commit}.bzl")
        assert find_xla_commit("a" * 40) == "b" * 40
        assert find_xla_commit("c" * 40) is None
