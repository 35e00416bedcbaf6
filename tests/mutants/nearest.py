"""The tests that are nearest to a module.

In: the path of a module of the product. Out: paths for pytest, nearest first: the module's own doctests, the test file
of its name, the other files of that folder, the test files that import it, and those of the modules that import it.
"""

import re
from functools import cache
from pathlib import Path, PurePosixPath

FAR = ("tests/bench", "tests/docker", "tests/journeys", "tests/repo")  # of the whole product, or of real images
PACKAGES = ("ci", "models", "profiling")


def find_tests(root: Path, path: str) -> list[str]:
    """The nearest tests of a module, as paths relative to the checkout; empty where it has none."""
    module = PurePosixPath(path)
    package, _, *rooms = module.parent.parts
    mirror = _nearest_folder(root, PurePosixPath("tests", package, *rooms))
    own = [path] if ">>>" in (root / path).read_text() else []
    named = sorted(name for name in _list_tests(root, mirror) if PurePosixPath(name).name == f"test_{module.name}")
    beside = sorted(name for name in _list_tests(root, mirror) if PurePosixPath(name).parent == mirror)
    below = _list_tests(root, mirror) if mirror.parts != ("tests", package) else ()
    importing = find_importers(root, module, "tests")
    indirect = [test for user in find_importers(root, module, package) for test in _find_mirror(root, user)]
    return list(dict.fromkeys([*own, *named, *beside, *below, *importing, *indirect]))


def find_importers(root: Path, module: PurePosixPath, folder: str) -> list[str]:
    """The modules in a folder that import this one; of `tests`, test files only."""
    dotted = ".".join(module.with_suffix("").parts[1:])
    parent, _, name = dotted.rpartition(".")
    whole, above = re.escape(dotted), re.escape(parent)
    forms = rf"from {whole} import|import {whole}\b|from {above} import .*\b{name}\b"
    pattern = re.compile(rf"^\s*({forms})", re.MULTILINE)
    return [path for path, text in _read_modules(root, folder) if path != str(module) and pattern.search(text)]


def _find_mirror(root: Path, path: str) -> list[str]:
    module = PurePosixPath(path)
    package, _, *rooms = module.parent.parts
    tests = _list_tests(root, PurePosixPath("tests", package, *rooms))
    return [test for test in tests if PurePosixPath(test).name == f"test_{module.name}"]


def _nearest_folder(root: Path, folder: PurePosixPath) -> PurePosixPath:
    """The folder itself, or the nearest one above it that holds tests."""
    while not _list_tests(root, folder) and len(folder.parts) > 1:
        folder = folder.parent
    return folder


@cache
def _list_tests(root: Path, folder: PurePosixPath) -> tuple[str, ...]:
    return tuple(sorted(path.relative_to(root).as_posix() for path in (root / folder).rglob("test_*.py")))


@cache
def _read_modules(root: Path, folder: str) -> tuple[tuple[str, str], ...]:
    paths = (root / folder).rglob("test_*.py" if folder == "tests" else "*.py")
    names = sorted((path.relative_to(root).as_posix(), path) for path in paths)
    return tuple((name, path.read_text()) for name, path in names if not name.startswith(FAR))
