"""Words that users once had to read twice do not come back, nor do the habits of code behind them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import noxfile

ROOT = noxfile.ROOT
PHRASES = (
    "mind the spelling",  # check the spelling
    "nobody foresaw",  # unexpected
    "a fault of nightjar",  # a bug in nightjar
    "the folder another's",  # check that you own the folder
    "would have it",
    "which is said",
    "chance makes some of",  # within what chance produces
    "Looked worse in its history",
    "looks cut off",  # incomplete
    "ends too early",  # incomplete
    "is no list",  # is not a list
    "is no date",  # is not a valid date
    "is no safe file name",  # is not a safe file name
    "is no regular",  # is not a regular file, not a valid regular expression
    "are no replicates",  # are not replicates
    "this is no database",  # not a valid database URL
    "SIGTERM came",  # received SIGTERM
    "it said nothing",  # no output
    "is there already",  # exists already
    "knows no night",  # has no night
    "stands twice",  # duplicate
    "What became of",  # outcome
    "asks of the store",  # the part of the store that it uses
    "The memory across nights",  # the database of all nights
    "told apart by",  # identified by
)
PRIVATE_LOCALS = frozenset(("one", "found", "known", "place", "told", "there", "asked"))  # they say not what they hold
# per package: conditional expressions per 1,000 lines, private names per 1,000 assigned locals
BOUNDS = {"ci": (10, 3), "models": (10, 10), "profiling": (10, 10)}


def sources(package: str) -> list[Path]:
    files = (ROOT / package / f"nightjar_{package}").rglob("*.py")
    return [path for path in files if not path.name.endswith("_pb2.py")]


def test_no_phrase_of_the_list_stands_in_code_or_docs() -> None:
    files = [path for name in noxfile.PACKAGES for path in sources(name)]
    files += [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    assert len(files) > 500
    texts = {str(path.relative_to(ROOT)): " ".join(path.read_text(encoding="utf-8").split()) for path in files}
    found = [f"{name}: {phrase}" for name, text in texts.items() for phrase in PHRASES if phrase in text]
    assert found == []


def assigned_locals(tree: ast.AST) -> Iterator[str]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    yield node.id


@pytest.mark.parametrize("package", BOUNDS)
def test_conditional_expressions_and_private_locals_stay_rare(package: str) -> None:
    texts = [path.read_text(encoding="utf-8") for path in sources(package)]
    trees = [ast.parse(text) for text in texts]
    conditional = sum(isinstance(node, ast.IfExp) for tree in trees for node in ast.walk(tree))
    names = [name for tree in trees for name in assigned_locals(tree)]
    most_conditional, most_private = BOUNDS[package]
    assert 1000 * conditional / sum(text.count("\n") for text in texts) <= most_conditional
    assert 1000 * sum(name in PRIVATE_LOCALS for name in names) / len(names) <= most_private
