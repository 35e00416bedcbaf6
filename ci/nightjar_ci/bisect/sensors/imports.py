"""The packages that a test imports, and the rungs that differ only in other packages: no test can tell these apart.

In: Python's import log (`IMPORT_TIMES`), and the packages of the environment. Out: the imported packages, and a weight
of each rung as the culprit. A rung that changes nothing imported is tested last, not left out: a child process may hide
its imports. A package that is not imported but brings a shared library, or no module at all, counts as imported: others
load it by its path.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from importlib.metadata import Distribution
from itertools import pairwise

from packaging.utils import canonicalize_name

from nightjar_ci.bisect.ladders.rung import Rung

IMPORT_TIMES = "PYTHONPROFILEIMPORTTIME"  # Python prints a line on stderr for each import; child processes inherit it
IMPORT_PREFIX = "import time:"
NOT_IMPORTED = 1e-3  # weight of a rung relative to one that changes an imported package
_LINE = re.compile(rf"^{IMPORT_PREFIX}\s+\d+ \|\s+\d+ \|\s+(\S+)\s*$", re.MULTILINE)
_MODULE = re.compile(r"(?P<path>[\w/]+?)(/__init__)?(\.[\w-]+)?\.(py|so)")
_SHARED = re.compile(r"(^|/)lib[^/]*\.so[.\d]*$")  # a shared library that is not a module
_MOST_NAMED = 5


def read_modules(stderr: str) -> frozenset[str]:
    """The modules that Python says it imported.

    >>> sorted(read_modules("import time:       17 |       1042 |   jax._src\\nother\\n"))
    ['jax._src']
    """
    return frozenset(_LINE.findall(stderr))


def find_imported(modules: Collection[str], packages: Iterable[Distribution]) -> frozenset[str]:
    """The packages of an environment that a process imported, or may have loaded: canonical names."""
    return frozenset(
        canonicalize_name(package.metadata["Name"]) for package in packages if _is_imported(package, modules)
    )


def weigh_imports(rungs: Sequence[Rung], imported: Collection[str], installed: Collection[str]) -> list[float]:
    """The weight of each culprit 1 to N - 1.

    Args:
        rungs: of a ladder of packages.
        imported: packages that a test imports at an end.
        installed: packages of both ends; of others it is not known whether they are imported.
    """
    ignored = set(installed) - set(imported)
    return [
        NOT_IMPORTED if (moved := _find_moved(before, after)) and moved <= ignored else 1.0
        for before, after in pairwise(rungs)
    ]


def describe_imports(rungs: Sequence[Rung], weights: Sequence[float]) -> str | None:
    """The weights in words; None if every rung changes a package that the test imports."""
    ignored = [at for at, weight in enumerate(weights, start=1) if weight < 1]
    if not ignored:
        return None
    names = sorted(set().union(*(_find_moved(rungs[at - 1], rungs[at]) for at in ignored)))
    named = ", ".join(names[:_MOST_NAMED]) + (f" and {len(names) - _MOST_NAMED} more" if names[_MOST_NAMED:] else "")
    return f"{len(ignored)} of {len(weights)} steps change only packages that the test does not import: {named}."


def may_ignore(rungs: Sequence[Rung]) -> bool:
    """Whether imports could tell rungs apart: all pin their packages, and not all steps change the same ones.

    >>> steps = [Rung(kind="packages", name=name, pins={"a": a, "b": b}) for name, a, b in ("x11", "y21", "z22")]
    >>> may_ignore(steps), may_ignore(steps[:2])
    (True, False)
    """
    if any(rung.kind != "packages" or not rung.pins for rung in rungs):
        return False
    return len({frozenset(_find_moved(before, after)) for before, after in pairwise(rungs)}) > 1


def _find_moved(before: Rung, after: Rung) -> set[str]:
    return {name for name in {**before.pins, **after.pins} if before.pins.get(name) != after.pins.get(name)}


def _is_imported(package: Distribution, modules: Collection[str]) -> bool:
    paths = [str(path) for path in package.files or ()]
    own = set(_name_modules(paths))
    loaded_by_path = any(_SHARED.search(path) for path in paths)
    return not own or loaded_by_path or not own.isdisjoint(modules)


def _name_modules(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        if match := _MODULE.fullmatch(path):
            yield match["path"].replace("/", ".")
