"""Source text of code that lies in no file, such as a notebook's cell, `python -c`, or code passed to `exec`.

A notebook puts its cells into `linecache`, and Python passes the code of `exec` and `compile` to an audit hook.
Standard library only: it runs in the Python of the program, whichever that is.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import sys
from typing import Any

LARGEST_CHARACTERS, MOST_TEXTS = 4_000_000, 200  # under one name
LIBRARY = re.compile(r"[/\\](?:site|dist)-packages[/\\]|^<(?:frozen|attrs generated)")
STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120 - pathlib would slow the start of every program
HOOK = os.path.dirname(__file__) + os.sep  # noqa: PTH120

_TEXTS: dict[str, dict[str, None]] = {}


def listen() -> None:
    """Notes from now on which texts the program compiles and executes."""
    sys.addaudithook(_hear)


def read_texts() -> dict[str, list[str]]:
    """The texts of code without a file, by its file name; several if different code has one name."""
    texts = {name: list(lines) for name, lines in _TEXTS.items()}
    for name, text in (("<string>", _read_command()), ("<stdin>", _read_stdin())):
        if text:
            texts.setdefault(name, []).append(text)
    for name in list(linecache.cache):
        if LIBRARY.search(name) or os.path.isfile(name):  # noqa: PTH113
            continue
        with contextlib.suppress(Exception):  # a loader of the program's own
            text = "".join(linecache.getlines(name))
            # Python 3.13 has that of `-c` here, too, with a newline at its end
            if text and text.strip("\n") not in {known.strip("\n") for known in texts.setdefault(name, [])}:
                texts[name].append(text)
    return {name: lines for name, lines in texts.items() if lines}


def find_caller() -> str:
    """The innermost line of the program's own code that runs in this thread, `FILE:LINE`; empty if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not (LIBRARY.search(file) or file.startswith((STANDARD_LIBRARY, HOOK))):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "compile":
        return
    with contextlib.suppress(Exception):  # an error here would be one of the program
        source, name = arguments[0], os.fsdecode(arguments[1])
        caller = sys._getframe(1).f_code.co_filename
        if not isinstance(source, (str, bytes)) or not name.startswith("<") or LIBRARY.search(name):
            return
        if name == "<string>" and (caller.startswith(STANDARD_LIBRARY) or LIBRARY.search(caller)):  # a dataclass's
            return
        text = source if isinstance(source, str) else source.decode("utf-8", "replace")
        texts = _TEXTS.setdefault(name, {})
        if text not in texts and sum(map(len, texts)) + len(text) <= LARGEST_CHARACTERS and len(texts) < MOST_TEXTS:
            texts[text] = None


def _read_command() -> str | None:
    arguments = iter(sys.orig_argv[1:])
    for argument in arguments:
        if argument in ("-X", "-W"):
            next(arguments, None)
        elif option := re.fullmatch(r"-[bBdEiIOPqsSuvx]*c(.*)", argument, re.DOTALL):
            return option[1] or next(arguments, None)
        elif not argument.startswith("-") or argument == "-":
            return None
    return None


def _read_stdin() -> str | None:
    """The program that Python reads from its standard input, if it is a file: reading it again takes nothing."""
    main = sys.modules.get("__main__")
    if getattr(main, "__file__", None) not in (None, "<stdin>") or _read_command() is not None:
        return None
    try:
        if not os.path.isfile("/dev/stdin"):  # noqa: PTH113
            return None
        return os.pread(0, LARGEST_CHARACTERS, 0).decode("utf-8", "replace")
    except OSError:
        return None
