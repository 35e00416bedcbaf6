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
    mirror = PurePosixPath("tests", package, *rooms)
    while not (beside := _list_tests(root, mirror)) and len(mirror.parts) > 1:
        mirror = mirror.parent  # a room without tests of its own is tested by the one above
    if len(mirror.parts) == 2:  # of a whole package: its own files, not those of all rooms
        beside = [test for test in beside if PurePosixPath(test).parent == mirror]
    name = f"test_{module.name}"
    beside.sort(key=lambda test: (PurePosixPath(test).name != name, PurePosixPath(test).parent != mirror, test))
    users = _find_importers(root, module, package)
    indirect = [f"tests/{package}/{user.split('/', 2)[2].rpartition('/')[0]}/test_{Path(user).name}" for user in users]
    own = [path] if ">>>" in (root / path).read_text() else []
    found = [*own, *beside, *_find_importers(root, module, "tests"), *indirect]
    return list(dict.fromkeys(test for test in found if (root / test).is_file()))


def _find_importers(root: Path, module: PurePosixPath, folder: str) -> list[str]:
    dotted = ".".join(module.with_suffix("").parts[1:])
    parent, _, name = dotted.rpartition(".")
    whole, above = re.escape(dotted), re.escape(parent)
    forms = rf"from {whole} import|import {whole}\b|from {above} import .*\b{name}\b"
    pattern = re.compile(rf"^\s*({forms})", re.MULTILINE)
    return [path for path, text in _read_modules(root, folder) if path != str(module) and pattern.search(text)]


def _list_tests(root: Path, folder: PurePosixPath) -> list[str]:
    return [path.relative_to(root).as_posix() for path in (root / folder).rglob("test_*.py")]


@cache
def _read_modules(root: Path, folder: str) -> tuple[tuple[str, str], ...]:
    paths = (root / folder).rglob("test_*.py" if folder == "tests" else "*.py")
    names = sorted((path.relative_to(root).as_posix(), path) for path in paths)
    return tuple((name, path.read_text()) for name, path in names if not name.startswith(FAR))
