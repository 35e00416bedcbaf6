"""What does the compiler's refusal mean, and which option helps?

In: what XLA says. Out: the remedy, where one is known. Each goes when the releases of JAX that need it are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from nightjar_models.errors import CompilerError

Compiled = TypeVar("Compiled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """An option of XLA that gets around a refusal.

    Attributes:
        said: what XLA says, each of these.
        option, value: what helps.
        why: the reason, in words.
    """

    said: tuple[str, ...]
    option: str
    value: bool | str
    why: str

    @property
    def hint(self) -> str:
        """What a user may add."""
        value = str(self.value).lower() if isinstance(self.value, bool) else self.value
        return f"add --xla {self.option}={value}: {self.why}"


# XLA takes the tiles of a Triton product from those that it timed on the device, without one it takes a default, which
# does not fit every shape: 6,272 rows of `vit_b16`, which is 32 x 196 positions (jaxlib 0.10.1 to 0.12).
TRITON_PRODUCTS = Remedy(
    said=("find output tile sizes",),
    option="xla_gpu_enable_triton_gemm",
    value=False,
    why="XLA's default tiles of a Triton product do not fit this program",
)
# Its own kernel for the sum of one number over `data` and `fsdp` does not compile (jaxlib 0.12.0.1); NCCL's is left.
COLLECTIVE_KERNELS = Remedy(
    said=("compiling Triton kernel", "all-reduce"),
    option="xla_gpu_experimental_use_collective_kernels",
    value="",
    why="XLA's own kernel for a small all-reduce does not compile",
)
REMEDIES = (TRITON_PRODUCTS, COLLECTIVE_KERNELS)


def find_remedy(words: str) -> Remedy | None:
    """What helps where XLA says this.

    >>> find_remedy("INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot.737").option
    'xla_gpu_enable_triton_gemm'
    """
    return next((one for one in REMEDIES if all(part in words for part in one.said)), None)


def refuse(words: str) -> CompilerError:
    """The error that says what XLA said, and what helps."""
    remedy = find_remedy(words)
    return CompilerError(words, remedy.hint if remedy is not None else None)


def compile_around(compile_one: Callable[[Mapping[str, Any]], Compiled], options: dict[str, Any]) -> Compiled:
    """Compiles; where XLA refuses and an option helps, again with it.

    Args:
        compile_one: options of the compiler to what it makes with them.
        options: the user's; gets what was needed, so that whatever is compiled next has it too.

    Raises:
        CompilerError: nothing is known to help, or the user's options say otherwise.
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
