"""DLPack cell: arrays pass between JAX, PyTorch and NumPy without a copy.

Checked by address: the array that is made of a tensor lies where the tensor lies, for every common type, and back.
A write to memory that both see is seen by both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nightjar_models.ecosystem.cell import Check, Finding, time_calls

TYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int32", "int16", "int8", "uint8", "bool")
SHAPE = (512, 1024)


def run() -> Finding:
    """Runs the cell."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import torch

    def address(array: jax.Array) -> int:
        return array.unsafe_buffer_pointer()

    copied: dict[str, list[str]] = {"from torch": [], "to torch": [], "from numpy": [], "to numpy": []}
    wrong: list[str] = []
    counting = torch.arange(SHAPE[0] * SHAPE[1]).reshape(SHAPE) % 2
    for name in TYPES:
        tensor = counting.to(getattr(torch, name))
        array = jax.dlpack.from_dlpack(tensor)
        back = torch.from_dlpack(array)
        copied["from torch"] += [name] * (address(array) != tensor.data_ptr())
        copied["to torch"] += [name] * (back.data_ptr() != address(array))
        same = str(array.dtype) == name and bool((array.astype(jnp.int32) == counting.numpy()).all())
        wrong += [name] * (not same)
    for name in ("float32", "float16", "int32", "uint8"):
        aligned = align(np.ones(SHAPE, name), np)
        array = jax.dlpack.from_dlpack(aligned)
        copied["from numpy"] += [name] * (address(array) != aligned.ctypes.data)
        copied["to numpy"] += [name] * (np.from_dlpack(array).ctypes.data != address(array))
    shared = torch.zeros(SHAPE)
    seen = jax.dlpack.from_dlpack(shared)
    shared.fill_(3.0)
    big = torch.ones(4096, 4096)
    samples = time_calls(
        lambda: jax.dlpack.from_dlpack(torch.from_dlpack(jax.dlpack.from_dlpack(big))),
        items=1,
        unit="round trips/s",
        calls=200,
    )
    return Finding(
        checks=[
            *check_copies(copied, wrong),
            Check(
                name="shared_write",
                value=float(seen.sum()),
                expected=3.0 * SHAPE[0] * SHAPE[1],
                tolerance=0,
                why="what PyTorch writes afterwards, JAX reads",
            ),
        ],
        samples=samples,
    )


def check_copies(copied: Mapping[str, Sequence[str]], wrong: Sequence[str]) -> Iterator[Check]:
    """The checks that nothing was copied, and that values and types arrived.

    Args:
        copied: what changed its address, by the way that it went, such as `to torch`.
        wrong: the types whose values or names differ.
    """
    for way, names in copied.items():
        yield Check(
            name="copies_" + way.replace(" ", "_"),
            value=len(names),
            expected=0,
            tolerance=0,
            why="what changed its address: " + (", ".join(names) or "nothing"),
        )
    yield Check(
        name="wrong_values",
        value=len(wrong),
        expected=0,
        tolerance=0,
        why="types whose values or names differ: " + (", ".join(wrong) or "none"),
    )


def align(array, np):
    """A copy that begins at a multiple of 64 bytes: XLA:CPU copies what does not, and NumPy promises only 16."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
