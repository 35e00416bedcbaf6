"""TransformerEngine: without library or GPU an error says what is missing; on a GPU they agree with bfloat16."""

from __future__ import annotations

import importlib.util

import jax
import jax.numpy as jnp
import pytest

from nightjar_models.errors import InputError, ToolError
from nightjar_models.te_layers import (
    RECIPES,
    check_recipe,
    feed_forward,
    find_capability,
    transformer_layer,
    use_recipe,
)

HAS_LIBRARY = importlib.util.find_spec("transformer_engine") is not None
needs_gpu = pytest.mark.skipif(jax.default_backend() != "gpu" or not HAS_LIBRARY, reason="no GPU or TransformerEngine")


def test_a_recipe_is_refused_with_its_reason() -> None:
    check_recipe("delayed", (9, 0))
    check_recipe("nvfp4", (10, 0))
    with pytest.raises(InputError, match=r"unknown recipe 'mxfp'.*did you mean 'mxfp8'"):
        check_recipe("mxfp", (10, 0))
    with pytest.raises(ToolError, match=r"mxfp8: expected compute capability 10\.0 or newer, found 9\.0"):
        check_recipe("mxfp8", (9, 0))
    with pytest.raises(ToolError, match=r"found none.*nightjar_models\.precision"):
        check_recipe("delayed", None)


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_without_a_gpu_a_recipe_says_so() -> None:
    assert find_capability() is None
    with pytest.raises(ToolError, match="found none"):
        use_recipe("delayed")


@pytest.mark.skipif(HAS_LIBRARY, reason="TransformerEngine is installed")
def test_a_missing_library_says_how_to_get_it() -> None:
    with pytest.raises(ToolError, match=r"cannot be imported.*Hint: pip install 'nightjar-models\[te\]'"):
        feed_forward(8)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("kind", ["LayerNormMLP", "TransformerLayer"])
def test_layers_agree_with_their_unscaled_selves(name: str, kind: str) -> None:
    try:
        check_recipe(name, find_capability())
    except ToolError as error:
        pytest.skip(error.message)
    layer = feed_forward(1024) if kind == "LayerNormMLP" else transformer_layer(256, 1024, 4)
    x = jax.random.normal(jax.random.key(0), (2, 128, 256), jnp.bfloat16)

    def run() -> jax.Array:
        variables = layer.init(jax.random.key(1), x)
        found, _ = layer.apply(variables, x, mutable=True, rngs={"sr_rng": jax.random.key(2)})
        out: jax.Array = found[0] if isinstance(found, tuple) else found
        return out.astype(jnp.float32)

    exact = run()
    with use_recipe(name):
        scaled = run()
    difference = float(jnp.linalg.norm(scaled - exact) / jnp.linalg.norm(exact))
    # FP8 has 3 bits of mantissa, about 0.04 for a product of many; FP4 has one
    assert 1e-4 < difference < (0.3 if name == "nvfp4" else 0.1)
