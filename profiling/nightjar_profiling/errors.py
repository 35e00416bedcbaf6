"""Errors of nightjar-profiling, each with its exit code and hint.

ProfilingError              3, a tool or machine failed
├── InputError              2, bad usage or file: says the file, the value, the expected one
│   └── SchemaError         2, a file of a newer or foreign schema
├── ToolError               3, another program is missing or failed
├── CaptureError            3, the profiler is missing, or a program that ended well was not traced
└── NotAttributableError    4, nothing was recorded that could be attributed
"""

from __future__ import annotations

import errno
from typing import ClassVar

ROOM, OTHERS = "make room, or name another folder with --out", "name a folder with --out that you may write to"
HINTS = {errno.ENOSPC: ROOM, errno.EDQUOT: ROOM, **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), OTHERS)}


class ProfilingError(Exception):
    """Base of all errors that a user can meet."""

    exit_code: ClassVar[int] = 3

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        if self.hint is None:
            return self.message
        return f"{self.message} Hint: {self.hint}"


def explain(error: OSError | ProfilingError) -> ProfilingError:
    """One of our errors as it is; that of a refused system call with the file, the reason and the remedy.

    >>> str(explain(OSError(errno.ENOSPC, "No space left on device")))
    'No space left on device. Hint: make room, or name another folder with --out'
    """
    if isinstance(error, ProfilingError):
        return error
    message = f"{error.strerror or error}."
    files = [str(name) for name in (error.filename, error.filename2) if name is not None]
    if files:
        message = f"{' -> '.join(files)}: {message}"
    return ProfilingError(message, HINTS.get(error.errno or 0))


class InputError(ProfilingError):
    """A file or an option is wrong: missing, truncated, of the wrong kind."""

    exit_code = 2


class SchemaError(InputError):
    """A file names a schema that this version does not read."""


class ToolError(ProfilingError):
    """Another program that is needed is missing or failed."""


class CaptureError(ProfilingError):
    """The profiler is missing, or a program was not traced; if the program itself failed, its code is the answer."""


class NotAttributableError(ProfilingError):
    """The program ran, but recorded no device time."""

    exit_code = 4
