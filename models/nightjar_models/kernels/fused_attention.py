"""Conditions of cuDNN's fused attention, and the fallback if they do not hold.

In: a request for attention and its device. Out: the implementation that computes it. cuDNN refuses with an
error deep inside a trace; here its conditions are a pure function, the refusal is a warning in the log, and the run's
result says which implementation was used (`attention` under `config`).

Source: jax/_src/cudnn/fused_attention_stablehlo.py of JAX 0.10 (check_layout, check_is_flash_attention); NVIDIA cuDNN
documentation, "Scaled Dot Product Attention".
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

log = logging.getLogger(__name__)

CUDNN, FALLBACK = "cudnn", "xla"
_HOPPER, _AMPERE = (9, 0), (8, 0)
_HEAD_LIMIT, _HEAD_LIMIT_HOPPER = 128, 256

_used: contextvars.ContextVar[set[str] | None] = contextvars.ContextVar("used", default=None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A call of attention.

    Attributes:
        dtype: of queries, keys and values.
        head_width: numbers per head.
        queries: positions that look.
        keys: positions that are looked at.
        biased, masked: whether a learned bias is added to the scores, and some are left out.
        split: whether a mesh splits the positions.
        piped: whether a mesh has a pipeline.
        platform: `cpu`, `gpu`, ... of the device.
        capability: a GPU's compute capability, such as (9, 0).
    """

    dtype: str
    head_width: int
    queries: int
    keys: int
    biased: bool = False
    masked: bool = False
    split: bool = False
    piped: bool = False
    platform: str
    capability: tuple[int, int] | None = None


def find_refusals(request: Request) -> list[str]:
    """Why cuDNN would not compute this; empty if it would.

    >>> find_refusals(Request(dtype="float32", head_width=64, queries=8, keys=8, platform="gpu", capability=(9, 0)))
    ['float32, expected bfloat16 or float16']
    """
    if request.platform not in ("gpu", "cuda"):
        return [f"no NVIDIA GPU, but {request.platform}"]
    refusals = []
    capability = request.capability or (0, 0)
    if capability < _AMPERE:
        refusals.append(f"compute capability {capability[0]}.{capability[1]}, expected 8.0 or newer")
    if request.dtype not in ("bfloat16", "float16"):
        refusals.append(f"{request.dtype}, expected bfloat16 or float16")
    limit = _HEAD_LIMIT_HOPPER if capability >= _HOPPER else _HEAD_LIMIT
    if request.head_width > limit or request.head_width % 8:
        refusals.append(f"heads of {request.head_width}, expected a multiple of 8 up to {limit}")
    if request.biased and (request.queries % 2 or request.keys % 2):
        refusals.append(f"a bias for {request.queries} x {request.keys} positions, expected even numbers")
    if request.biased and request.masked:  # which JAX adds to the bias, and the sum has another shape
        refusals.append("a mask beside a bias")
    if request.split:
        refusals.append("positions split over a mesh")
    if request.piped:  # JAX 0.10.2: AttributeError 'GSPMDSharding' has no 'spec', or an AssertionError without others
        refusals.append("layers in a pipeline, where its partitioner fails")
    return refusals


def describe_call(q: Any, k: Any, *, biased: bool, masked: bool = False, split: bool, mesh: Any) -> Request:
    """The request of one call.

    Args:
        q: queries [B, T, H, K].
        k: keys [B, S, G, K].
        biased, masked: whether a bias is added to the scores, and some are left out.
        split: whether the mesh splits the positions.
        mesh: whose devices compute it; None for JAX's default.
    """
    import jax

    device = jax.devices()[0] if mesh is None else mesh.devices.flat[0]
    capability = getattr(device, "compute_capability", None)
    numbers = tuple(map(int, str(capability).split("."))) if device.platform == "gpu" and capability else None
    return Request(
        dtype=q.dtype.name,
        head_width=q.shape[-1],
        queries=q.shape[1],
        keys=k.shape[1],
        biased=biased,
        masked=masked,
        split=split,
        piped=mesh is not None and mesh.shape["pipeline"] > 1,
        platform=device.platform,
        capability=(numbers[0], numbers[1]) if numbers else None,
    )


def fall_back(asked: str, refusals: list[str]) -> str:
    """The requested implementation; or, if cuDNN cannot compute it, the fallback, with a warning."""
    implementation = FALLBACK if refusals else asked
    note = f"{implementation} ({asked} refused: {'; '.join(refusals)})" if refusals else implementation
    used = _used.get()
    if refusals and (used is None or note not in used):
        log.warning("attention: %s", note)
    if used is not None:
        used.add(note)
    return implementation


@contextlib.contextmanager
def note_choices() -> Iterator[set[str]]:
    """Collects the choices of `fall_back` while a program is traced, one note for each kind."""
    notes: set[str] = set()
    token = _used.set(notes)
    try:
        yield notes
    finally:
        _used.reset(token)
