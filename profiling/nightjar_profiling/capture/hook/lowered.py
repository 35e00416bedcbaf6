"""The program's computations as JAX lowered them, before XLA optimizes: one file for each compilation.

Only they tell which operations XLA merged, and the shape of an array that it split over devices. jaxlib itself converts
the compiler's input, in a fraction of the compile time. If this JAX does it otherwise, nothing is kept. Standard
library only: it runs in the Python of the program, whichever that is.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

LARGEST_BYTES = 64 << 20  # of one program: 500,000 operations
MOST_BYTES = 512 << 20  # of all
HLO_MODULE = b"\x0a"  # the field of an HloProto that holds its module


def keep_lowered(folder: Path, wanted: Callable[[], bool]) -> Callable[[], None]:
    """Keeps the compiler's input from now on.

    Args:
        folder: made when there is something to keep.
        wanted: whether the current compilation belongs to the program.

    """
    compiler: Any = sys.modules.get("jax._src.compiler")
    original = getattr(compiler, "compile_or_get_cached", None)
    if original is None:  # another JAX
        return lambda: None
    kept = 0

    def compile_or_get_cached(*args: Any, **kwargs: Any) -> Any:
        nonlocal kept
        with contextlib.suppress(Exception):  # it must not fail the program
            if wanted() and kept < MOST_BYTES:
                kept += write_lowered(folder, kwargs["computation"] if len(args) < 2 else args[1])
        return original(*args, **kwargs)

    compiler.compile_or_get_cached = compile_or_get_cached

    def undo() -> None:
        compiler.compile_or_get_cached = original

    return undo


def write_lowered(folder: Path, computation: Any) -> int:
    """Writes a computation of MLIR as HLO; returns the bytes written."""
    mlir: Any = sys.modules["jax._src.interpreters.mlir"]
    jaxlib: Any = sys.modules["jax._src.lib"].xla_client._xla.mlir
    converted = jaxlib.mlir_module_to_xla_computation(mlir.module_to_bytecode(computation))
    module: bytes = converted.as_serialized_hlo_module_proto()
    if len(module) > LARGEST_BYTES:
        return 0
    folder.mkdir(exist_ok=True)
    number = sum(1 for _ in folder.iterdir())
    path = folder / f"{number:05}.hlo.pb"
    path.write_bytes(HLO_MODULE + write_varint(len(module)) + module)
    return len(module)


def write_varint(number: int) -> bytes:
    """A length as protobuf writes it.

    >>> write_varint(300)
    b'\\xac\\x02'
    """
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    written.append(number)
    return bytes(written)
