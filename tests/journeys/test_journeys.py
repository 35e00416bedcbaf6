"""The tutorials: what they tell a reader to run does what they say."""

from pathlib import Path

import pytest

from tests.journeys.pages import PAGES, Block, read_blocks, read_parts, run_page

LIGHT = [path for path in PAGES if any(block.codes and not block.heavy for block in read_blocks(path.read_text()))]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[getattr(pytest.mark, part) for part in read_parts(page.read_text())], id=page.stem)
        for page in LIGHT
    ],
)
@pytest.mark.slow
def test_the_commands_of_a_journey_do_what_it_says(page: Path, tmp_path: Path) -> None:
    assert run_page(page, tmp_path, heavy=False) > 0


def test_every_journey_has_commands_that_are_run() -> None:
    assert {path.stem for path in PAGES} == {"bisect", "cluster", "gate", "images", "library", "profile", "pytorch"}
    assert all(any(block.codes for block in read_blocks(path.read_text())) for path in PAGES)


def test_a_block_says_whether_it_is_run() -> None:
    page = "<!-- run: heavy 0 4 -->\n```sh\nA\n```\n<!-- not run: far -->\n```sh\nB\n```\n"
    assert list(read_blocks(page)) == [
        Block(text="A\n", codes=(0, 4), heavy=True),
        Block(text="B\n", codes=(), heavy=False),
    ]
    with pytest.raises(ValueError, match="no comment says"):
        list(read_blocks("```sh\nC\n```\n"))


def test_a_block_that_ends_otherwise_is_named_with_its_output(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- run: 0 -->\n```sh\necho why; exit 3\n```\n")
    with pytest.raises(RuntimeError, match=r"exit code 3, expected \(0,\)(.|\n)*why"):
        run_page(page, tmp_path, heavy=False)
