from pathlib import Path

import pytest

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.jax_nightly.days import MACHINES, choose_day, read_days
from nightjar_ci.jax_nightly.mirror import is_for_images, keep_files, read_mirror
from nightjar_ci.web.package_index import File
from tests.ci.jax_nightly.wheels import PYTHONS, fill_day, serve


def keep(index: str, mirror: Path) -> int:
    (day,) = read_days(index)
    return keep_files(mirror, [(name, file) for name, files in day.files.items() for file in files], lambda step: None)


def test_a_day_is_read_from_the_mirror_and_from_a_server_of_it_when_the_index_has_lost_it(tmp_path: Path) -> None:
    fill_day(tmp_path / "index", "2026-11-20")
    with serve(tmp_path / "index") as index:
        (kept,) = read_days(index)
        assert keep(index, tmp_path / "mirror") > 0
        assert keep(index, tmp_path / "mirror") == 0
    (day,) = read_days(str(tmp_path / "mirror"))
    assert day.versions == kept.versions
    hashes = {file.name: file.sha256 for files in kept.files.values() for file in files}
    assert {file.name: file.sha256 for files in day.files.values() for file in files} == hashes
    assert choose_day([day], PYTHONS).refused == ()
    with serve(tmp_path / "mirror") as index:
        assert read_days(index)[0].versions == kept.versions


def test_a_wheel_with_another_hash_than_the_index_says_is_not_kept(tmp_path: Path) -> None:
    fill_day(tmp_path / "index", "2026-11-20")
    with serve(tmp_path / "index") as index:
        (day,) = read_days(index)
        file = day.files["jax"][0]
        (tmp_path / "index/jax" / file.name).write_bytes(b"other")
        with pytest.raises(NightjarError, match="SHA-256"):
            keep_files(tmp_path / "mirror", [("jax", file)], lambda step: None)
    assert list((tmp_path / "mirror").rglob("*.whl")) == []


def test_a_kept_wheel_that_was_changed_is_downloaded_again(tmp_path: Path) -> None:
    fill_day(tmp_path / "index", "2026-11-20")
    with serve(tmp_path / "index") as index:
        keep(index, tmp_path / "mirror")
        wheel = next((tmp_path / "mirror/jax").glob("*.whl"))
        wheel.write_bytes(b"changed")
        assert keep(index, tmp_path / "mirror") == (tmp_path / "index/jax" / wheel.name).stat().st_size
    assert wheel.read_bytes() == (tmp_path / "index/jax" / wheel.name).read_bytes()


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a mirror folder"):
        read_mirror(tmp_path / "none", "jax")


@pytest.mark.parametrize(
    ("tag", "kept"),
    [
        ("py3-none-any", True),
        ("cp313-cp313-manylinux_2_27_x86_64", True),
        ("cp313-cp313t-manylinux_2_27_x86_64", False),
        ("cp311-cp311-manylinux_2_27_x86_64", False),
        ("cp313-cp313-win_amd64", False),
        ("cp313-cp313-macosx_11_0_arm64", False),
        ("py3-none-manylinux_2_27_aarch64", True),
    ],
)
def test_the_mirror_keeps_what_images_install(tag: str, kept: bool) -> None:
    wheel = File(name=f"jaxlib-1.0-{tag}.whl", uploaded=None, yanked=False)
    assert is_for_images(wheel, PYTHONS, MACHINES) is kept
