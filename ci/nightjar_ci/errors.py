"""Errors of nightjar-ci, each with its exit code and hint.

NightjarError               3, a tool or machine failed
├── InputError              2, bad usage, config or file: says the file, the value, what was expected
│   └── SchemaError         2, a file of a newer or foreign schema
├── EnvironmentFailedError  3, an environment could not be prepared
├── ExecutorError           3, an executor could not start or end a job
└── StoreError              3, the store could not be opened or written
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """The exit codes of all commands.

    Attributes:
        OK: the answer is yes.
        NO: the answer is no: a regression, a failed test.
        USAGE: wrong usage, configuration or input file.
        FAILED: a job, tool or machine failed.
        CANNOT_TELL: too few or too noisy results for an answer.
        INTERRUPTED: 128 + SIGINT, as in a shell.
        OUTPUT_CLOSED: 128 + SIGPIPE: the reader closed our output.
        TERMINATED: 128 + SIGTERM.
    """

    OK = 0
    NO = 1
    USAGE = 2
    FAILED = 3
    CANNOT_TELL = 4
    INTERRUPTED = 130
    OUTPUT_CLOSED = 141
    TERMINATED = 143


class NightjarError(Exception):
    """Base of all errors that are shown to users.

    Args:
        message: the failure, with the value and its origin, and the expected value.
        hint: what to do now, or None.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        if self.hint is None:
            return self.message
        return f"{self.message} Hint: {self.hint}"


class InputError(NightjarError):
    """A file or an option is wrong: unknown key, wrong type, missing, truncated."""

    exit_code = ExitCode.USAGE


class SchemaError(InputError):
    """A file names a schema that this version does not read."""


class EnvironmentFailedError(NightjarError):
    """An environment (uv or image) could not be prepared."""


class ExecutorError(NightjarError):
    """An executor could not start or end a job."""


class StoreError(NightjarError):
    """The store could not be opened, migrated or written."""
