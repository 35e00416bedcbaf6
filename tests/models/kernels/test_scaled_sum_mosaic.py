"""The kernel is lowered to Mosaic GPU on a machine without a GPU; the nightly of absent GPUs compiles it."""

import jax
import jax.numpy as jnp
import pytest

from nightjar_models.kernels.scaled_sum_mosaic import compiled, make_arguments


def test_jax_lowers_it_to_one_call_of_mosaic_gpu() -> None:
    lowered = compiled.trace(*make_arguments()).lower(lowering_platforms=("cuda",)).as_text()
    assert lowered.count("custom_call @mosaic_gpu") == 1
    assert "tensor<1024x1024xf32>" in lowered


def test_rows_that_are_no_multiple_of_a_block_are_refused() -> None:
    with pytest.raises(ValueError, match="multiples of 64 and 128"):
        jax.eval_shape(compiled, jnp.ones((65, 128)), jnp.ones((65, 128)))
