"""The structure page and its pictures are those of the code."""

import re

import pytest

import noxfile
from tests.repo.structure import (
    PACKAGES,
    Room,
    read_rooms,
    render_files,
)


def room(name: str, *imports: str) -> Room:
    return Room(name=name, purpose=f"Purpose of {name}.", imports=frozenset(imports))


@pytest.mark.slow
def test_the_page_and_its_pictures_are_those_of_the_code() -> None:
    stale = [path.name for path, text in render_files().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run `nox -s generate_docs` (python -m tests.repo.structure)"


def test_every_top_level_folder_of_the_repository_has_a_row() -> None:
    page = (noxfile.ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `([\w.]+)/` \|", page, re.M))
    assert rows == {"ci", "models", "profiling", "docker", "tests", "docs", ".github"}
    assert all((noxfile.ROOT / name).is_dir() for name in rows)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_says_what_belongs_in_it(package: str) -> None:
    for one in read_rooms(PACKAGES[package]):
        assert one.purpose.endswith("."), f"{one.name}: {one.purpose!r} is not a sentence"
        assert not one.purpose.endswith("?")
