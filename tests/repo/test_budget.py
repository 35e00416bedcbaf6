"""How much there is: lines of Python, words of docs, commands, options, formats, each within `budget.toml`."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import noxfile

ROOT = noxfile.ROOT
BUDGET = tomllib.loads((Path(__file__).parent / "budget.toml").read_text())
MODELS = ROOT / "models" / "nightjar_models"
CELLS = tuple(MODELS / name for name in ("conformance", "ecosystem", "canaries"))
FOLLOWS = 0.95  # of a number of more than a hundred: below it the number falls, too


def find_python(part: str) -> Iterator[Path]:
    if part == "cells":
        for folder in CELLS:
            yield from folder.rglob("*.py")
        return
    for path in (ROOT / part).rglob("*.py"):
        if not any(path.is_relative_to(folder) for folder in CELLS):
            yield path


def count_lines(part: str) -> int:
    return sum(path.read_bytes().count(b"\n") for path in find_python(part))


def count_rest() -> dict[str, int]:
    reference = (ROOT / "docs" / "reference" / "cli.md").read_text()
    versions = (ROOT / "docs" / "reference" / "versions.md").read_text()
    return {
        "words": sum(len(path.read_text().split()) for path in (ROOT / "docs").rglob("*.md")),
        "fragments": len(list((ROOT / "changelog.d").glob("*.*.md"))),
        "commands": reference.count("\n### "),
        "options": len(re.findall(r"^\| `-", reference, re.MULTILINE)),
        "formats": len(set(re.findall(r"`nightjar\.[a-z-]+/\d+`", versions))),
    }


COUNTED = {**{part: count_lines(part) for part in BUDGET["lines"]}, **count_rest()}
LIMITS = {**BUDGET["lines"], **BUDGET["docs"], **BUDGET["interface"]}


def test_everything_that_is_counted_has_a_number() -> None:
    assert COUNTED.keys() == LIMITS.keys()


@pytest.mark.parametrize("part", LIMITS)
def test_a_part_stays_within_its_budget(part: str) -> None:
    counted, limit = COUNTED[part], LIMITS[part]
    assert counted <= limit, (
        f"{part} has {counted}, {counted - limit} more than tests/repo/budget.toml allows. The number only falls: take "
        "away as much as you add, or ask the maintainers."
    )
    assert limit <= 100 or counted >= FOLLOWS * limit, f"{part} has {counted}: lower its number {limit} in budget.toml."
