"""Compile errors of XLA with a known workaround.

In: XLA's message. Out: the workaround, if one is known. Each is removed with the last release of JAX that needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from nightjar_models.errors import CompilerError

Compiled = TypeVar("Compiled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """An option of XLA that avoids a compile error.

    Attributes:
        parts: texts that all occur in XLA's message.
    """

    parts: tuple[str, ...]
    option: str
    value: bool | str
    why: str

    @property
    def hint(self) -> str:
        """The option as a user adds it."""
        value = self.value
        if isinstance(value, bool):
            value = str(value).lower()
        return f"add --xla {self.option}={value}: {self.why}"


# XLA takes the tiles of a Triton product from those that it timed on the device; without a device it takes a default,
# which does not fit every shape: 6,272 rows of `vit_b16`, which is 32 x 196 positions (jaxlib 0.10.1 to 0.12).
TRITON_PRODUCTS = Remedy(
    parts=("find output tile sizes",),
    option="xla_gpu_enable_triton_gemm",
    value=False,
    why="XLA's default tiles of a Triton product do not fit this program",
)
# XLA's own kernel for the sum of one number over `data` and `fsdp` does not compile (jaxlib 0.12.0.1); NCCL's does.
COLLECTIVE_KERNELS = Remedy(
    parts=("compiling Triton kernel", "all-reduce"),
    option="xla_gpu_experimental_use_collective_kernels",
    value="",
    why="XLA's own kernel for a small all-reduce does not compile",
)
REMEDIES = (TRITON_PRODUCTS, COLLECTIVE_KERNELS)


def find_remedy(message: str) -> Remedy | None:
    """The workaround for a message of XLA, or None.

    >>> find_remedy("INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot.737").option
    'xla_gpu_enable_triton_gemm'
    """
    return next((remedy for remedy in REMEDIES if all(part in message for part in remedy.parts)), None)


def make_error(message: str) -> CompilerError:
    """The error with XLA's message, and the workaround as its hint."""
    remedy = find_remedy(message)
    return CompilerError(message, remedy.hint if remedy is not None else None)


def compile_with_remedies(compile_one: Callable[[Mapping[str, Any]], Compiled], options: dict[str, Any]) -> Compiled:
    """Compiles; if XLA fails with a known error, compiles again with its workaround.

    Args:
        compile_one: compiles with the given compiler options.
        options: the user's options; workarounds that were needed are added, for the compilations that follow.
    """
    for _ in REMEDIES:
        try:
            return compile_one(dict(options))
        except CompilerError as error:
            remedy = find_remedy(error.message)
            if remedy is None or remedy.option in options:
                raise
        options[remedy.option] = remedy.value
    return compile_one(dict(options))
