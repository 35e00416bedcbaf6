"""Errors of nightjar-ci, each with its exit code and hint.

NightjarError               3, a tool or machine failed
├── InputError              2, bad usage, config or file: says the file, the value, what was expected
│   └── SchemaError         2, a file of a newer or foreign schema
├── EnvironmentFailedError  3, an environment could not be prepared
├── ExecutorError           3, an executor could not start or end a job
└── StoreError              3, the store could not be opened or written
"""

from __future__ import annotations

from typing import ClassVar


class NightjarError(Exception):
    """Base of all errors that a user can meet.

    Args:
        message: what failed, with the value and where it came from, and what was expected.
        hint: what to do now; None where there is nothing useful to say.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message} Hint: {self.hint}"


class InputError(NightjarError):
    """A file or an option is wrong: unknown key, wrong type, missing, truncated."""

    exit_code = 2


class SchemaError(InputError):
    """A file names a schema that this version does not read."""


class EnvironmentFailedError(NightjarError):
    """An environment (uv or image) could not be prepared."""


class ExecutorError(NightjarError):
    """An executor could not start or end a job."""


class StoreError(NightjarError):
    """The store could not be opened, migrated or written."""
