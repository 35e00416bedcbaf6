"""What of a compiled step should a person read, though nothing failed?

In: the compiler's log, the `Module`, and how attention was asked for and chosen while the step was traced. Out: one
sentence for each thing: fused attention that did not come out, shardings that could only be met by copying a whole
array, and what cannot be counted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from nightjar_models.aot.program.kernels import ATTENTION, kernel_kind
from nightjar_models.aot.program.module import Module
from nightjar_models.aot.program.replica_groups import collective_kind, names_group
from nightjar_models.kernels.fused_attention import CUDNN

_REMATERIALIZED = re.compile(r"[Ii]nvoluntary full rematerialization[^\n]*")


def find_lints(log: str, module: Module, asked: str, choices: Collection[str]) -> tuple[str, ...]:
    """The sentences.

    Args:
        log: of the compiler.
        module: that it made.
        asked: the implementation of attention that the config names.
        choices: those that were taken, as `fused_attention.note_choices` collects them.
    """
    return (*_attention(module, asked, choices), *_copied(log), *_uncounted(module))


def _attention(module: Module, asked: str, choices: Collection[str]) -> Iterator[str]:
    if asked != CUDNN:
        return
    fused = any(kernel_kind(one).startswith(ATTENTION) for one, _ in module.executed())
    missing = "" if fused else ", and no cuDNN attention kernel came out"
    refused = sorted(choice for choice in choices if choice != CUDNN)
    for choice in refused:
        yield f"attention: cudnn was asked for, {choice} was taken{missing}"
    if missing and not refused:
        yield f"attention: cudnn was asked for{missing}"


def _copied(log: str) -> Iterator[str]:
    if count := len(_REMATERIALIZED.findall(log)):
        yield f"involuntary full rematerialization: {count} times"


def _uncounted(module: Module) -> Iterator[str]:
    for one, _ in module.executed():
        if collective_kind(one) and not names_group(one):
            yield f"collective {one.name}: no group is named in a known form, all devices are assumed"
    for name in module.unknown_loops:
        yield f"loop {name}: its trip count is not known, one is assumed"
