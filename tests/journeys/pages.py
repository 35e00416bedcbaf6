"""Which commands do the tutorials tell a reader to run, and do they do what the page says?

In: the pages of docs/journeys. A shell block has a comment above it: `run: 0` (the exit codes that are right), `run:
heavy 0` (not within the tests' time) or `not run: why`; `in: checkout` says that a page begins in a checkout, `needs:
buildx` which parts of a machine its light blocks use (tests/machine.py). Out: how many blocks ran, or the first that
ended otherwise.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import noxfile

PAGES = sorted(path for path in (noxfile.ROOT / "docs" / "journeys").glob("*.md") if path.name != "index.md")
REGISTRY = "ghcr.io/me/nightjar"
HEAVY_PARTS = ("docker", "registry")
_BLOCK = re.compile(r"(?:<!-- (?P<mark>[^\n]*?) -->\n)?```sh\n(?P<text>.*?)```", re.DOTALL)
_NEEDS = re.compile(r"^<!-- needs: (.*) -->$", re.MULTILINE)
_RUN = re.compile(r"run: (?P<heavy>heavy )?(?P<codes>\d+(?: \d+)*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A shell block of a page, and how it is to end; `codes` is empty where it is not run."""

    text: str
    codes: tuple[int, ...]
    heavy: bool


def read_blocks(page: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(page):
        mark = found["mark"] or ""
        if (run := _RUN.fullmatch(mark)) is not None:
            codes = tuple(int(code) for code in run["codes"].split())
            yield Block(text=found["text"], codes=codes, heavy=run["heavy"] is not None)
        elif mark.startswith("not run: "):
            yield Block(text=found["text"], codes=(), heavy=False)
        else:
            raise ValueError(f"no comment says whether this is run: {found['text']!r}")


def read_parts(page: str) -> tuple[str, ...]:
    return tuple(part for line in _NEEDS.findall(page) for part in line.split())


def run_page(path: Path, folder: Path, *, heavy: bool, registry: str = REGISTRY) -> int:
    """Runs the blocks of a page in order, each in a shell of its own; returns how many."""
    text = path.read_text()
    place = noxfile.ROOT if "<!-- in: checkout -->" in text else folder
    programs = str(Path(sys.executable).parent)
    environ = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "NIGHTJAR_STATE_DIR": ".nightjar"}
    if place != folder:
        environ["NIGHTJAR_STATE_DIR"] = str(folder / ".nightjar")
    count = 0
    for block in read_blocks(text):
        if not block.codes or (block.heavy and not heavy):
            continue
        shell = ["bash", "-eu", "-o", "pipefail", "-c", block.text.replace(REGISTRY, registry)]
        done = subprocess.run(shell, cwd=place, env=environ, capture_output=True, text=True, check=False)
        if done.returncode not in block.codes:
            said = f"{path.name}: exit code {done.returncode}, expected {block.codes}:\n{block.text}"
            raise RuntimeError(f"{said}{done.stdout[-2000:]}{done.stderr[-2000:]}")
        count += 1
    return count
