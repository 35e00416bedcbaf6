"""Errors of nightjar-models, each with its exit code and hint.

NightjarError       3, a tool or machine failed
├── InputError      2, bad usage or config: names the option, the value and the expected one
├── DivergedError   3, the loss stopped being finite; the result up to that step is written
├── CompilerError   3, the program cannot be compiled: no CUDA plugin, or the compiler fails
├── OutputError     3, the output folder cannot be written: full, read-only, or not a folder
├── ClusterError    3, a process of a distributed run is missing or cannot be reached
├── ToolError       3, a compiler or library that a switch asks for is missing or failed
├── EndedError    143, received SIGTERM; with --checkpoint-every the same command continues the run
├── BrokenError     1, a library built on JAX does not work: names the two incompatible versions
└── NotMeasurableError  4, this machine lacks a part that the check needs, such as a GPU
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class NightjarError(Exception):
    """Base of all errors that a user can meet.

    Args:
        message: the failure, with the value, its origin, and the expected value.
        hint: what to do now; None if there is nothing useful to say.
    """

    exit_code: ClassVar[int] = 3

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        if self.hint is None:
            return self.message
        return f"{self.message} Hint: {self.hint}"


class InputError(NightjarError):
    """An option, preset, mesh or folder given by the user is wrong."""

    exit_code = 2


class DivergedError(NightjarError):
    """The loss is NaN or infinite."""


class CompilerError(NightjarError):
    """A program cannot be compiled for the target devices."""


class OutputError(NightjarError):
    """The output folder cannot be written."""


class ClusterError(NightjarError):
    """The processes of a run did not find each other."""


class ToolError(NightjarError):
    """A compiler or an optional library is missing or failed."""


class EndedError(NightjarError):
    """The run was stopped by SIGTERM before its last step; 128 plus the signal's number, as in a shell."""

    exit_code = 143


class BrokenError(NightjarError):
    """A library does not import, fails, or computes a wrong number."""

    exit_code = 1


class NotMeasurableError(NightjarError):
    """The machine lacks a part that the check needs, so it has no answer."""

    exit_code = 4


def did_you_mean(word: str, choices: Iterable[str]) -> str | None:
    """The hint for a misspelt word, or None if no choice is similar.

    >>> did_you_mean("learning_rat", ["learning_rate", "seed"])
    "did you mean 'learning_rate'?"
    """
    matches = difflib.get_close_matches(word, list(choices), n=1)
    if matches:
        return f"did you mean {matches[0]!r}?"
    return None
