"""The test whether a Python file is the user's own code.

In: a file name from a stack frame. Out: yes or no. By default, the user's own code is every file that is not in the
standard library, not installed (site-packages, dist-packages) and not a generated console script. Code that was typed
or executed without a file (a notebook's cell, `<string>`, `<stdin>`) is the user's. Patterns add to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import cache

INSTALLED = re.compile(r"(?:.*/)?(?:site|dist)-packages/")
STANDARD_LIBRARY = re.compile(r"(?:^|.*/)lib(?:64)?/python\d+\.\d+t?/")
WINDOWS_LIBRARY = re.compile(
    r"[A-Za-z]:/(?:.*/)?(?:python\d+[^/]*|(?:mini|ana)conda\d?|envs/[^/]+)/lib/", re.IGNORECASE
)
GENERATED = re.compile(r"<(?:frozen |attrs generated |decorator-gen-|__array_function__ |built-in|unknown)")
CONSOLE_SCRIPT = re.compile(r"(?:^|.*/)s?bin/[^/.]+$")


def module_path(file: str) -> str:
    """The dotted name under which an installed file is imported.

    >>> module_path("/usr/lib/python3/dist-packages/numpy/linalg/__init__.py")
    'numpy.linalg'
    """
    path = INSTALLED.sub("", file.replace("\\", "/")).removesuffix(".py").removesuffix("/__init__")
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
        if any(fnmatchcase(module, name) or fnmatchcase(module, f"{name}.*") for name in wanted):
            return True
        path = file.replace("\\", "/")
        libraries = (INSTALLED, STANDARD_LIBRARY, WINDOWS_LIBRARY, CONSOLE_SCRIPT, GENERATED)
        return bool(file) and not any(pattern.match(path) for pattern in libraries)

    return is_user_code
