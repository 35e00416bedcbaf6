"""Is a Python file the user's own code?

In: a file name as a stack frame gives it. Out: yes or no. By default the user's own code is what is neither of the
standard library nor installed (site-packages, dist-packages), and no generated console script. Patterns add to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import cache

INSTALLED = re.compile(r".*/(?:site|dist)-packages/")
STANDARD_LIBRARY = re.compile(r"(?:^|.*/)lib(?:64)?/python\d+\.\d+/")
CONSOLE_SCRIPT = re.compile(r"(?:^|.*/)s?bin/[^/.]+$")


def module_path(file: str) -> str:
    """The dotted name under which an installed file is imported.

    >>> module_path("/usr/lib/python3/dist-packages/numpy/linalg/__init__.py")
    'numpy.linalg'
    """
    path = INSTALLED.sub("", file).removesuffix(".py").removesuffix("/__init__")
    return path.strip("/").replace("/", ".")


def user_code_test(patterns: Iterable[str] = ()) -> Callable[[str], bool]:
    """Makes the test for files of the user's own code.

    Args:
        patterns: shell patterns of further modules, dotted or with slashes: `nightjar_models`, `my_lib/layers/*`.
    """
    wanted = [pattern.removesuffix(".py").strip("/").replace("/", ".") for pattern in patterns]

    @cache
    def is_user_code(file: str) -> bool:
        module = module_path(file)
        if any(fnmatchcase(module, one) or fnmatchcase(module, f"{one}.*") for one in wanted):
            return True
        if file.startswith("<") or not file:
            return False
        return not any(one.match(file) for one in (INSTALLED, STANDARD_LIBRARY, CONSOLE_SCRIPT))

    return is_user_code
