"""The texts of code without a file, such as `<string>`, for the frames of a capture.

In: the texts that the traced program left (`raw/*.sources`) and the stack frames. Out: a text for each frame that is
certainly in one. Several texts may have one name: their frames then get names of their own, such as `<string 1>`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import polars as pl

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

Frame = tuple[str, int, str]
"""File, line and function."""


def read_texts(raw: Path) -> dict[str, list[str]]:
    """The texts of code without a file, by the name that its frames give it."""
    texts: dict[str, dict[str, None]] = {}
    for path in sorted(raw.glob("*.sources")):
        try:
            for name, several in json.loads(path.read_text(encoding="utf-8")).items():
                texts.setdefault(name, {}).update(dict.fromkeys(several))
        except (
            OSError,
            ValueError,
            AttributeError,
            TypeError,
        ):  # killed while writing: its lines are shown without text
            continue
    return {name: list(several) for name, several in texts.items()}


def name_texts(frames: pl.DataFrame, texts: Mapping[str, list[str]]) -> tuple[pl.DataFrame, dict[str, str]]:
    """Gives each text one name.

    Returns:
        The table, with files renamed if one name stands for several texts, and the texts by name.
    """
    of_file: dict[str, set[Frame]] = {}
    for frame in frames.select("file", "line", "function").unique().iter_rows():
        if frame[0] in texts:
            of_file.setdefault(frame[0], set()).add(frame)
    renamed: dict[Frame, str] = {}
    named: dict[str, str] = {}
    for file, members in sorted(of_file.items()):
        held = {frame: [text for text in texts[file] if _holds(text, frame)] for frame in members}
        certain = {frame: several[0] for frame, several in held.items() if len(several) == 1}
        used = [text for text in texts[file] if text in certain.values()]
        if len(used) == 1 and len(certain) == len(members):
            named[file] = used[0]
        elif file.endswith(">"):
            names = {text: f"{file[:-1]} {number}>" for number, text in enumerate(used, 1)}
            named.update({name: text for text, name in names.items()})
            renamed.update({frame: names[text] for frame, text in certain.items()})
    if not renamed:
        return frames, named
    files = [renamed.get(frame, frame[0]) for frame in frames.select("file", "line", "function").iter_rows()]
    return frames.with_columns(file=pl.Series(files, dtype=frames["file"].dtype)), named


def _holds(text: str, frame: Frame) -> bool:
    """Whether a frame can lie in a text: on a line with code, and in the function that it names."""
    _, line, function = frame
    lines = text.split("\n")
    if not 0 < line <= len(lines) or not lines[line - 1].strip():
        return False
    nodes = _parse(text)
    if nodes is None:
        return True
    name = function.rpartition(".")[2]
    if name == "<lambda>":
        return any(isinstance(node, ast.Lambda) and _spans(node, line) for node in nodes)
    if name.startswith("<"):
        return True
    return any(isinstance(node, FUNCTIONS) and node.name == name and _spans(node, line) for node in nodes)


@cache
def _parse(text: str) -> list[ast.AST] | None:
    """The nodes of a text; None of a notebook's cell with commands that are not Python."""
    try:
        return list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return None


def _spans(node: ast.expr | ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)
