"""The Python files of a project, and what they import.

In: a folder. Out: its files without those of environments, builds and caches; the modules that a file imports when it
is imported itself.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_SKIPPED = frozenset({"build", "dist", "node_modules", "site-packages", "third_party", "vendor", "venv", "env"})
MOST_FILES = 5000  # of a project that keeps its data as Python, the rest is not read
_LARGEST_BYTES = 1_000_000


def list_python_files(folder: Path) -> list[Path]:
    """The Python files of a project, relative to its folder, in order."""
    files: list[Path] = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith((".", "__pycache__"))
            and name not in _SKIPPED
            and not (Path(root, name) / "pyvenv.cfg").exists()
        )
        files += (Path(root, name).relative_to(folder) for name in sorted(names) if name.endswith(".py"))
        if len(files) >= MOST_FILES:
            break
    return files[:MOST_FILES]


def read_imports(path: Path) -> frozenset[str]:
    """The top modules that a file imports unconditionally, such as `jax` for `import jax.numpy`."""
    return frozenset(name.partition(".")[0] for name in _imported(_parse(path).body))


def read_all_imports(path: Path) -> frozenset[str]:
    """The top modules that a file imports anywhere, be it in a function or under a condition."""
    return frozenset(name.partition(".")[0] for name in _imported(ast.walk(_parse(path))))


def read_text(path: Path) -> str:
    """A file's text; empty if it is too large or cannot be read."""
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_BYTES:
            return ""
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(read_text(path))
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module(body=[], type_ignores=[])


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
