"""Copies of the Python files that the metadata of a capture names.

`collect` copies the files into a capture's `sources/`, each under its absolute path without the leading `/`. `reader`
returns the text of a line from there. The file names come from a trace, which another person may have made: only
regular `.py` files are copied, and nothing is read or written outside.
"""

from __future__ import annotations

import os
import shutil
import tokenize
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from nightjar_profiling.capture_folder.documents import write_text

LARGEST_BYTES = 4 * 1024 * 1024  # a source that people write is smaller


def place_of(file: str, working_folder: str | None) -> PurePosixPath | None:
    """The place of a file, relative to `sources/`; None if the name is not a path of a Python file.

    >>> place_of("/home/me/train.py", None)
    PurePosixPath('home/me/train.py')
    >>> place_of("../train.py", "/home/me/run")
    PurePosixPath('home/me/train.py')
    >>> place_of("<string>", "/home/me")
    PurePosixPath('executed/%3Cstring%3E')
    """
    if file.startswith("<") and file.endswith(">"):
        return PurePosixPath("executed", quote(file, safe=""))
    path = _absolute(file, working_folder)
    if path is None:
        return None
    return PurePosixPath(path.lstrip("/"))


def collect(
    files: Iterable[str], working_folder: str | None, folder: Path, texts: Mapping[str, str] | None = None
) -> list[str]:
    """Copies the Python files that exist here, and writes the texts of code that has no file.

    Returns:
        The names of the files that were copied, sorted.
    """
    copied = []
    texts = texts or {}
    for file in sorted(set(files)):
        source, relative = _absolute(file, working_folder), place_of(file, working_folder)
        if relative is None:
            continue
        try:
            if file in texts:
                write_text(folder / relative, texts[file])
                copied.append(file)
                continue
            if source is None or not os.path.isfile(source) or os.path.getsize(source) > LARGEST_BYTES:  # noqa: PTH113, PTH202
                continue
            target = folder / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        except (OSError, ValueError):  # unreadable, or a name that no file system takes
            continue
        copied.append(file)
    return copied


def text_reader(folder: Path, working_folder: str | None) -> Callable[[str], str | None]:
    """A function from a file to its text; None if `sources/` does not hold it."""
    root = folder.resolve()

    @cache
    def text_of(file: str) -> str | None:
        relative = place_of(file, working_folder)
        if relative is not None:
            path = (root / relative).resolve()
        else:
            path = None
        if path is None or not path.is_relative_to(root):  # a link in a folder that somebody else made
            return None
        try:
            with tokenize.open(path) as text:  # minds the encoding that the source declares
                return text.read()
        except (OSError, SyntaxError, UnicodeDecodeError):
            return None

    return text_of


def reader(folder: Path, working_folder: str | None) -> Callable[[str, int], str | None]:
    """A function from a file and line to its text, stripped; None if `sources/` does not hold it."""
    text_of = text_reader(folder, working_folder)
    lines_of = cache(lambda file: (text_of(file) or "").split("\n"))

    def source_of(file: str, line: int) -> str | None:
        lines = lines_of(file)
        if not (0 < line <= len(lines)):
            return None
        return lines[line - 1].strip() or None

    return source_of


def _absolute(file: str, working_folder: str | None) -> str | None:
    """The normalized absolute path of a Python file, in which no `..` is left."""
    if not file.endswith(".py") or "\0" in file or "\\" in file or file.startswith("<"):
        return None
    path = os.path.normpath(os.path.join(working_folder or "/", file))  # noqa: PTH118 - names of another machine
    return path if os.path.isabs(path) and path != "/" else None  # noqa: PTH117
