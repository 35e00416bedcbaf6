"""cuDNN's conditions are known before a trace; a refusal is said once and leaves a note.

For an absent H100 calls of `jax.nn.dot_product_attention` are compiled, which become cuDNN's kernels or are refused.
"""

import dataclasses
import logging
import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.cudnn import fused_attention_stablehlo as stablehlo  # dropout has no public name

from nightjar_models.aot.function import make_mesh
from nightjar_models.aot.topology import find_devices, find_plugin
from nightjar_models.hardware.target import parse_cluster
from nightjar_models.kernels.fused_attention import Request, describe_call, fall_back, find_refusals, note_choices
from nightjar_models.parallel.sharding import split

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
        ({"masked": True}, []),
        ({"masked": True, "biased": True}, ["a mask beside a bias"]),
    ],
)
def test_each_refusal_has_its_reason(change: dict[str, Any], reasons: list[str]) -> None:
    found = find_refusals(dataclasses.replace(FINE, **change))
    assert len(found) == len(reasons)
    assert all(one.startswith(reason) for one, reason in zip(found, reasons, strict=True))


def test_a_call_is_described_by_the_shapes_of_its_queries_and_keys() -> None:
    queries, keys = (jnp.zeros((2, positions, 4, 8), jnp.bfloat16) for positions in (6, 10))
    request = describe_call(queries, keys, biased=False, split=False, mesh=None)
    assert (request.queries, request.keys, request.head_width, request.dtype) == (6, 10, 8, "bfloat16")


def test_a_fallback_is_said_once_and_noted(caplog: pytest.LogCaptureFixture) -> None:
    refusals = find_refusals(dataclasses.replace(FINE, dtype="float32"))
    with caplog.at_level(logging.WARNING), note_choices() as notes:
        assert [fall_back("cudnn", refusals), fall_back("cudnn", refusals)] == ["xla", "xla"]
        assert fall_back("cudnn", find_refusals(FINE)) == "cudnn"
        assert fall_back("ring", []) == "ring"
    note = "xla (cudnn refused: float32, expected bfloat16 or float16)"
    assert notes == {note, "cudnn", "ring"}
    assert [record.message for record in caplog.records] == [f"attention: {note}"]


B, T, H, K, V = 8, 64, 8, 64, 4  # examples, positions, heads, their width, calls of a vmap
BATCH, HEADS, POSITIONS = ("data",), (None, None, "data"), (None, "data")
Q, BIAS = (B, T, H, K), (1, H, T, T)


def attend(q: Any, bias: Any = None, mask: Any = None) -> Any:
    return jax.nn.dot_product_attention(q, q, q, bias, mask, implementation="cudnn")


def attend_masked(q: Any, mask: Any) -> Any:
    return attend(q, mask=mask > 0)


def drop(q: Any) -> Any:
    return stablehlo.dot_product_attention(q, q, q, scale=0.125, dropout_rate=0.1, seed=7)


# The call, its arguments, and the collectives of its gradients on eight devices, or why it is refused.
CALLS: dict[str, tuple[Any, list[Any], list[str] | str]] = {
    "batch split": (attend, [(Q, BATCH)], []),
    "positions split": (attend, [(Q, POSITIONS)], "Sharding on sequence dim is not allowed."),
    "bias": (attend, [(Q, BATCH), (BIAS, ())], ["all-reduce"]),
    "bias, heads split": (attend, [(Q, HEADS), (BIAS, POSITIONS)], []),
    "bias split otherwise": (attend, [(Q, BATCH), (BIAS, POSITIONS)], "Query and bias should have same sharding"),
    "bias of odd positions": (attend, [((B, 63, H, K), BATCH), ((1, H, 63, 63), ())], "Unsupported sequence length"),
    "mask": (attend_masked, [(Q, BATCH), ((B, 1, T, T), BATCH)], []),
    "dropout": (drop, [(Q, BATCH)], []),
    "vmap, its axis split": (jax.vmap(attend), [((B, *Q), BATCH)], []),
    "vmap, batch split": (jax.vmap(attend), [((V, *Q), POSITIONS)], ["all-gather"]),
    "vmap, one bias": (jax.vmap(attend, (0, None)), [((B, *Q), BATCH), (BIAS, ())], ["all-reduce"]),
    "vmap, a bias each": (jax.vmap(attend), [((V, *Q), POSITIONS), ((V, *BIAS), ())], "cannot reshape array"),
    "vmap, a mask each": (jax.vmap(attend_masked), [((V, *Q), ()), ((V, B, 1, T, T), ())], "cannot reshape array"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_compiled_for_eight_h100_attention_and_gradients_are_fused_or_refused(name: str) -> None:
    if find_plugin() is None:
        pytest.skip("the CUDA plugin of JAX is not installed (docker/locks/aot.txt)")
    function, arguments, expected = CALLS[name]
    mesh = make_mesh(list(find_devices(parse_cluster("h100x8"))), None)
    describe: Any = jax.ShapeDtypeStruct
    shapes = [describe(shape, jnp.bfloat16, sharding=split(mesh, *axes)) for shape, axes in arguments]
    gradient = jax.jit(jax.grad(lambda *given: function(*given).astype(jnp.float32).sum(), range(len(shapes))))
    if isinstance(expected, str):
        with jax.set_mesh(mesh), pytest.raises(Exception, match=expected):
            gradient.lower(*shapes).compile()
        return
    with jax.set_mesh(mesh):
        text = gradient.lower(*shapes).compile().as_text() or ""
    kernels = re.findall(r'custom_call_target="__cudnn\$fmha(\w*)"', text)
    assert [kernel.endswith("Backward") for kernel in kernels] == [False, True]
    assert ("Bias" in kernels[0], "Dropout" in kernels[0]) == ("bias" in name or "mask" in name, name == "dropout")
    assert re.findall(r" (all-\w+|reduce-scatter|collective-permute)(?:-start)?\(", text) == expected
