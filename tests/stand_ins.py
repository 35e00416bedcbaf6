"""Programs that stand in front of this machine's own: those that a test did not ask for, and those that are broken.

A part that a test does not ask for is there by half for it: its programs are on PATH and end with an error. So a test
that uses one without asking fails on every machine, those that have everything included.
"""

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from tests.machine import PARTS, resolve

UNASKED = """#!/bin/sh
echo "$0 $*: this test does not ask for the part '{part}': expected pytest.mark.{part} (tests/machine.py)" >&2
exit 97
"""


def write_programs(folder: Path, texts: Mapping[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def put_on_path(patch: pytest.MonkeyPatch, folder: Path, texts: Mapping[str, str]) -> None:
    patch.setenv("PATH", str(write_programs(folder, texts)), prepend=os.pathsep)


@functools.cache
def hide(part: str) -> Path | None:
    """A folder with programs that stand before those of a part; None where no test goes without them."""
    if PARTS[part].optional or not PARTS[part].programs:
        return None
    return write_programs(_folder() / part, dict.fromkeys(PARTS[part].programs, UNASKED.format(part=part)))


def render_path(asked: Collection[str], path: str) -> str:
    """PATH for a test that asks for these parts: what it does not ask for is hidden."""
    folders = [hide(part) for part in PARTS if part not in resolve(asked)]
    return os.pathsep.join([*(str(folder) for folder in folders if folder is not None), path])


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="unasked-"))
    folder.chmod(0o755)  # other users run tests' programs, too
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
