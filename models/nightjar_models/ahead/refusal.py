"""What does the compiler's refusal mean, and which option helps?

In: what XLA says. Out: whether it is the one that an option gets around, and the option.

XLA takes the tiles of a Triton product from those that it timed on the device. Where there is none it takes a default,
which does not fit every shape: 6,272 rows of `vit_b16`, which is 32 x 196 positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from nightjar_models.errors import CompilerError

Compiled = TypeVar("Compiled")
TRITON_PRODUCTS = "xla_gpu_enable_triton_gemm"
HINT = f"add --xla {TRITON_PRODUCTS}=false: XLA's default tiles of a Triton product do not fit this program"
# Of XLA as jaxlib 0.10.1 and 0.10.2 have it; goes when `nightjar-models compile vit_b16` needs no option.
_UNTILED = "find output tile sizes"


def is_untiled(words: str) -> bool:
    """Whether XLA found no tiles for a product that it meant for Triton.

    >>> is_untiled("INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot.737")
    True
    """
    return _UNTILED in words


def compile_tiled(compile_one: Callable[[Mapping[str, Any]], Compiled], options: dict[str, Any]) -> Compiled:
    """Compiles; where XLA finds no tiles for a Triton product, once more without such products.

    Args:
        compile_one: options of the compiler to what it makes with them.
        options: the user's; gets the option that was needed, so that whatever is compiled next has it too.

    Raises:
        CompilerError: the compiler refuses the program for another reason, or the user wants Triton's products.
    """
    try:
        return compile_one(dict(options))
    except CompilerError as error:
        if not is_untiled(error.message) or TRITON_PRODUCTS in options:
            raise
    options[TRITON_PRODUCTS] = False
    return compile_one(dict(options))
