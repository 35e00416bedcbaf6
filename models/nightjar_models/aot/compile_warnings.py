"""Warnings about a compiled step.

In: the compiler's log, the `Module`, and the attention that was configured and chosen while the step was traced. Out:
one sentence each for fused attention that is missing, shardings that required a copy of a whole array, and instructions
whose cost cannot be counted. The sentences are compared with a baseline's: a change of wording is a new warning.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from nightjar_models.kernels.fused_attention import CUDNN
from nightjar_models.program.kernels import ATTENTION, kernel_kind
from nightjar_models.program.module import Module
from nightjar_models.program.replica_groups import collective_kind, names_group

_REMATERIALIZED = re.compile(r"[Ii]nvoluntary full rematerialization[^\n]*")


def find_warnings(log: str, module: Module, configured: str, choices: Collection[str]) -> tuple[str, ...]:
    """The warnings, a sentence each.

    Args:
        configured: the implementation of attention in the config.
        choices: the implementations that were used, as `fused_attention.note_choices` collects them.
    """
    return (*_attention(module, configured, choices), *_copied(log), *_uncounted(module))


def _attention(module: Module, configured: str, choices: Collection[str]) -> Iterator[str]:
    if configured != CUDNN:
        return
    fused = any(kernel_kind(instruction).startswith(ATTENTION) for instruction, _ in module.executed())
    missing = ""
    if not fused:
        missing = ", and no cuDNN attention kernel came out"
    refused = sorted(choice for choice in choices if choice != CUDNN)
    for choice in refused:
        yield f"attention: cudnn was asked for, {choice} was taken{missing}"
    if missing and not refused:
        yield f"attention: cudnn was asked for{missing}"


def _copied(log: str) -> Iterator[str]:
    if count := len(_REMATERIALIZED.findall(log)):
        yield f"involuntary full rematerialization: {count} times"


def _uncounted(module: Module) -> Iterator[str]:
    for instruction, _ in module.executed():
        if collective_kind(instruction) and not names_group(instruction):
            yield f"collective {instruction.name}: no group is named in a known form, all devices are assumed"
    for name in module.unknown_loops:
        yield f"loop {name}: its trip count is not known, one is assumed"
