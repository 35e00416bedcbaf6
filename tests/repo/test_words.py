"""Phrases that users once had to read twice: none of them comes back in code or docs."""

from __future__ import annotations

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
    "is no list",  # is not a list
    "is no date",  # is not a valid date
    "SIGTERM came",  # received SIGTERM
    "it said nothing",  # no output
)


def test_no_phrase_of_the_list_stands_in_code_or_docs() -> None:
    files = [path for name in noxfile.PACKAGES for path in (ROOT / name / f"nightjar_{name}").rglob("*.py")]
    files += [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    assert len(files) > 500
    texts = {str(path.relative_to(ROOT)): " ".join(path.read_text(encoding="utf-8").split()) for path in files}
    found = [f"{name}: {phrase}" for name, text in texts.items() for phrase in PHRASES if phrase in text]
    assert found == []
