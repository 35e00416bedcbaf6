"""The recorder of executed lines: a `sitecustomize` for the jobs of one recording.

In: the variable BREAKAGE_TRACED, a file with one `module:qualified name` per line, and BREAKAGE_LINES, a folder. Out: a
file per process with `module:qualified name:line`, each line of these functions that was executed. Other functions are
not traced, and cost one look-up per call.
"""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

TRACED = frozenset(Path(os.environ["BREAKAGE_TRACED"]).read_text(encoding="utf-8").split("\n"))
CODES: dict[int, tuple[CodeType, str | None]] = {}  # the code is kept, so that its id stays its own
SEEN: set[tuple[str, int]] = set()


def on_call(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
    """The trace function: follows the lines of the chosen functions, those inside them included."""
    code = frame.f_code
    if id(code) not in CODES:
        name = f"{frame.f_globals.get('__name__')}:{code.co_qualname}"
        outer = name
        while outer not in TRACED and ".<locals>." in outer:
            outer = outer.rpartition(".<locals>.")[0]
        CODES[id(code)] = code, outer if outer in TRACED else None
    traced = CODES[id(code)][1]
    if traced is None:
        return None

    def on_line(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        if event == "line" and (traced, frame.f_lineno) not in SEEN:
            SEEN.add((traced, frame.f_lineno))
            with Path(os.environ["BREAKAGE_LINES"], str(os.getpid())).open("a", encoding="utf-8") as file:
                file.write(f"{traced}:{frame.f_lineno}\n")
        return on_line

    return on_line


if __name__ == "sitecustomize":
    threading.settrace(on_call)
    sys.settrace(on_call)
