"""cuDNN's conditions are known before a trace; a refusal is said once and leaves a note."""

import dataclasses
import logging
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from nightjar_models.kernels.fused_attention import Request, choose, find_refusals, note_choices

FINE = Request(dtype="bfloat16", head_width=128, queries=64, keys=64, platform="gpu", capability=(8, 0))


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        ({}, []),
        ({"capability": (9, 0), "head_width": 256}, []),
        ({"dtype": "float16", "biased": True}, []),
        ({"head_width": 136}, ["heads of 136, expected a multiple of 8 up to 128"]),
        ({"head_width": 264, "capability": (10, 0)}, ["heads of 264, expected a multiple of 8 up to 256"]),
        ({"head_width": 60}, ["heads of 60, expected a multiple of 8 up to 128"]),
        ({"dtype": "float32"}, ["float32, expected bfloat16 or float16"]),
        ({"capability": (7, 5)}, ["compute capability 7.5, expected 8.0 or newer"]),
        ({"biased": True, "queries": 63}, ["a bias for 63 x 64 positions, expected even numbers"]),
        ({"split": True}, ["positions split over a mesh"]),
        ({"piped": True}, ["layers in a pipeline"]),
        ({"platform": "cpu", "dtype": "float32"}, ["no NVIDIA GPU, but cpu"]),
        ({"dtype": "float32", "head_width": 4}, ["float32", "heads of 4"]),
    ],
)
def test_each_refusal_has_its_reason(change: dict[str, Any], reasons: list[str]) -> None:
    found = find_refusals(dataclasses.replace(FINE, **change))
    assert len(found) == len(reasons)
    assert all(one.startswith(reason) for one, reason in zip(found, reasons, strict=True))


def test_a_fallback_is_said_once_and_noted(caplog: pytest.LogCaptureFixture) -> None:
    refused = dataclasses.replace(FINE, dtype="float32")
    with caplog.at_level(logging.WARNING), note_choices() as notes:
        assert [choose("cudnn", refused), choose("cudnn", refused)] == ["xla", "xla"]
        assert choose("cudnn", FINE) == "cudnn"
        assert choose("ring", refused) == "ring"
    note = "xla (cudnn refused: float32, expected bfloat16 or float16)"
    assert notes == {note, "cudnn", "ring"}
    assert [record.message for record in caplog.records] == [f"attention: {note}"]


@pytest.mark.gpu
def test_what_is_not_refused_is_compiled_to_cudnn() -> None:
    q = jnp.ones((2, 64, 4, 64), jnp.bfloat16)
    attend = jax.jit(lambda q: jax.nn.dot_product_attention(q, q, q, implementation="cudnn"))
    assert "__cudnn$fmha" in (attend.lower(q).compile().as_text() or "")
