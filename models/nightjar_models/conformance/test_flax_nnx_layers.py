"""Layers of `flax.nnx` against their formulas in NumPy, with the arguments that people pass.

Source: Ba et al. 2016 (layer norm); Ioffe and Szegedy 2015 (batch norm); Wu and He 2018 (group norm); Zhang and
Sennrich 2019 (RMS norm); Srivastava et al. 2014 (dropout).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy.typing import NDArray

from nightjar_models.conformance.agreement import BFLOAT16, assert_close, draw, read

Array = NDArray[np.float64]
RANDOM_BIAS = nnx.initializers.normal(1.0)  # a bias of zeros would hide that it is missing


def normalize(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    mean = x.mean(axes, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + epsilon)


@pytest.mark.parametrize("use_bias", [True, False])
def test_linear(use_bias: bool) -> None:
    layer = nnx.Linear(5, 3, use_bias=use_bias, bias_init=RANDOM_BIAS, rngs=nnx.Rngs(0))
    x = draw(2, 4, 5)
    assert read(layer.kernel).shape == (5, 3)
    expected = x @ read(layer.kernel)
    if use_bias:
        expected = expected + read(layer.bias)
    else:
        assert layer.bias is None or layer.bias.get_value() is None
    assert_close(layer(x), expected)


def test_linear_dtypes() -> None:
    layer = nnx.Linear(64, 8, dtype=jnp.bfloat16, bias_init=RANDOM_BIAS, rngs=nnx.Rngs(0))
    half = nnx.Linear(64, 8, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    x = draw(16, 64)
    assert layer.kernel[...].dtype == jnp.float32
    assert layer(x).dtype == jnp.bfloat16
    assert half.kernel[...].dtype == jnp.bfloat16
    assert half(x).dtype == jnp.float32
    rounded = np.asarray(jnp.asarray(x).astype(jnp.bfloat16).astype(jnp.float32), np.float64)
    kernel = np.asarray(layer.kernel[...].astype(jnp.bfloat16).astype(jnp.float32))
    # The sum of 64 products is rounded to bfloat16, then the bias is added and the sum is rounded again.
    assert_close(layer(x).astype(jnp.float32), rounded @ kernel + read(layer.bias), 3 * BFLOAT16)


LAYERS: dict[str, tuple[Any, int]] = {
    "Linear": (lambda: nnx.Linear(256, 512, rngs=nnx.Rngs(0)), 256),
    "LinearGeneral": (lambda: nnx.LinearGeneral(256, (8, 64), rngs=nnx.Rngs(0)), 256),
    "Conv": (lambda: nnx.Conv(256, 64, (3,), rngs=nnx.Rngs(0)), 256 * 3),
    "Einsum": (lambda: nnx.Einsum("ab,bc->ac", (256, 512), (512,), rngs=nnx.Rngs(0)), 256),
    "Embed": (lambda: nnx.Embed(256, 512, rngs=nnx.Rngs(0)), 512),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_default_initializers(layer: str) -> None:
    make, fan = LAYERS[layer]
    made = make()
    kernel, bias = getattr(made, "kernel", getattr(made, "embedding", None)), getattr(made, "bias", None)
    values = np.asarray(kernel[...])
    # lecun_normal and, for a table, a variance of 1 / features; the error of a variance of n numbers is sqrt(2 / n).
    assert values.var() * fan == pytest.approx(1, abs=5 * np.sqrt(2 / values.size))
    assert abs(values.mean()) * np.sqrt(fan * values.size) < 5
    if layer == "Embed":
        assert np.abs(values).max() * np.sqrt(fan) > 3  # a normal that is not cut
    else:
        assert np.abs(values).max() * np.sqrt(fan) < 2 / 0.87962566 + 1e-3  # one that is cut at two deviations
    if bias is not None:
        assert not np.asarray(bias[...]).any()


def test_linear_kernel_and_bias_initializers() -> None:
    layer = nnx.Linear(
        4, 4, kernel_init=nnx.initializers.ones_init(), bias_init=nnx.initializers.constant(2.0), rngs=nnx.Rngs(0)
    )
    assert_close(layer(jnp.arange(4.0)[None]), np.full((1, 4), 8.0))


def test_linear_general() -> None:
    x = draw(2, 3, 4, 5)
    layer = nnx.LinearGeneral((3, 5), (6, 7), axis=(1, -1), bias_init=RANDOM_BIAS, rngs=nnx.Rngs(0))
    kernel = read(layer.kernel)
    assert kernel.shape == (3, 5, 6, 7)
    assert_close(layer(x), np.einsum("bijk,ikmn->bjmn", x, kernel) + read(layer.bias))
    last = nnx.LinearGeneral(5, (2, 3), use_bias=False, rngs=nnx.Rngs(1))
    assert_close(last(x), np.einsum("bijk,kmn->bijmn", x, read(last.kernel)))


def test_linear_general_batch_axis() -> None:
    x = draw(3, 4, 5)
    layer = nnx.LinearGeneral(5, 6, batch_axis={0: 3}, bias_init=RANDOM_BIAS, rngs=nnx.Rngs(0))
    kernel, bias = read(layer.kernel), read(layer.bias)
    assert kernel.shape == (3, 5, 6)
    assert_close(layer(x), np.einsum("bik,bkm->bim", x, kernel) + bias.reshape(3, 1, 6))


def test_einsum() -> None:
    x = draw(2, 3, 4)
    layer = nnx.Einsum("abc,cde->abde", (4, 5, 6), (5, 6), bias_init=RANDOM_BIAS, rngs=nnx.Rngs(0))
    kernel = read(layer.kernel)
    assert_close(layer(x), np.einsum("abc,cde->abde", x, kernel) + read(layer.bias))
    plain = nnx.Einsum("abc,cd->abd", (4, 7), rngs=nnx.Rngs(0))
    assert_close(plain(x), x @ read(plain.kernel))


def convolve(x: Array, kernel: Array, stride: int = 1, dilation: int = 1, groups: int = 1) -> Array:
    """A two-dimensional cross-correlation of (batch, height, width, channels), without padding, by loops."""
    reach = [(size - 1) * dilation + 1 for size in kernel.shape[:2]]
    height, width = ((x.shape[i + 1] - reach[i]) // stride + 1 for i in range(2))
    per_group, out_per_group = kernel.shape[2], kernel.shape[3] // groups
    out = np.zeros((len(x), height, width, kernel.shape[3]))
    for row, column in np.ndindex(height, width):
        top, left = row * stride, column * stride
        window = x[:, top : top + reach[0] : dilation, left : left + reach[1] : dilation]
        for group in range(groups):
            channels = window[..., group * per_group : (group + 1) * per_group]
            span = slice(group * out_per_group, (group + 1) * out_per_group)
            out[:, row, column, span] = np.einsum("bijc,ijco->bo", channels, kernel[..., span])
    return out


def test_conv() -> None:
    x = draw(2, 6, 5, 4)
    layer = nnx.Conv(4, 6, kernel_size=(3, 3), bias_init=RANDOM_BIAS, rngs=nnx.Rngs(0))
    kernel, bias = read(layer.kernel), read(layer.bias)
    assert kernel.shape == (3, 3, 4, 6)
    assert_close(layer(x), convolve(np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), kernel) + bias, 5e-6)


@pytest.mark.parametrize(("stride", "dilation", "groups"), [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 1, 4)], ids=str)
def test_conv_arguments(stride: int, dilation: int, groups: int) -> None:
    x = draw(2, 7, 8, 4)
    layer = nnx.Conv(
        4, 8, (3, 2), stride, padding="VALID", kernel_dilation=dilation, feature_group_count=groups, use_bias=False,
        rngs=nnx.Rngs(0),
    )  # fmt: skip
    expected = convolve(x, read(layer.kernel), stride, dilation, groups)
    assert_close(layer(x), expected, 5e-6)


def test_conv_same_padding_with_strides() -> None:
    x = draw(1, 7, 6, 2)  # SAME gives ceil(n / stride) rows; where the padding is odd, the end gets more
    layer = nnx.Conv(2, 3, (3, 3), strides=(2, 2), use_bias=False, rngs=nnx.Rngs(0))
    kernel = read(layer.kernel)
    assert_close(layer(x), convolve(np.pad(x, ((0, 0), (1, 1), (0, 1), (0, 0))), kernel, 2), 5e-6)


def test_conv_causal_circular_and_explicit_padding() -> None:
    x = draw(2, 6, 3)
    for padding, padded in (
        ("CAUSAL", np.pad(x, ((0, 0), (2, 0), (0, 0)))),
        ("CIRCULAR", np.pad(x, ((0, 0), (1, 1), (0, 0)), mode="wrap")),
        ([(1, 2)], np.pad(x, ((0, 0), (1, 2), (0, 0)))),
    ):
        layer = nnx.Conv(3, 4, (3,), padding=padding, use_bias=False, rngs=nnx.Rngs(0))
        kernel = read(layer.kernel)[:, None]
        assert_close(layer(x), convolve(padded[:, :, None], kernel)[:, :, 0], 5e-6)


def test_conv_transpose() -> None:
    x = draw(1, 4, 3)
    layer = nnx.ConvTranspose(3, 2, (3,), strides=(2,), padding="VALID", bias_init=RANDOM_BIAS, rngs=nnx.Rngs(0))
    kernel, bias = read(layer.kernel), read(layer.bias)
    # Each input is laid down `stride` apart, and JAX does not flip the kernel: the output is a correlation of those.
    spread = np.zeros((1, 7, 3))
    spread[:, ::2] = x
    expected = convolve(np.pad(spread, ((0, 0), (2, 2), (0, 0)))[:, :, None], kernel[:, None])[:, :, 0] + bias
    assert_close(layer(x), expected, 5e-6)
    same = nnx.ConvTranspose(3, 2, (3,), strides=2, rngs=nnx.Rngs(0))
    assert same(x).shape == (1, 8, 2)


def test_embed() -> None:
    layer = nnx.Embed(num_embeddings=7, features=5, rngs=nnx.Rngs(0))
    table = read(layer.embedding)
    tokens = jnp.array([[0, 3, 6], [1, 1, 5]])
    assert_close(layer(tokens), table[np.asarray(tokens)], 0)
    x = draw(2, 3, 5)
    assert_close(layer.attend(x), x @ table.T)
    assert nnx.Embed(7, 5, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))(tokens).dtype == jnp.bfloat16


@pytest.mark.parametrize("epsilon", [1e-6, 1e-2])
def test_layer_norm(epsilon: float) -> None:
    layer = nnx.LayerNorm(16, epsilon=epsilon, bias_init=RANDOM_BIAS, scale_init=RANDOM_BIAS, rngs=nnx.Rngs(0))
    x = 0.1 * draw(4, 16) + 0.2
    scale, bias = read(layer.scale), read(layer.bias)
    assert_close(layer(x), normalize(np.asarray(x, np.float64), (1,), epsilon) * scale + bias, 2e-5)


def test_layer_norm_defaults_and_axes() -> None:
    x = 0.01 * draw(3, 4, 6)
    layer = nnx.LayerNorm(6, rngs=nnx.Rngs(0))
    assert_close(layer(x), normalize(np.asarray(x, np.float64), (2,), 1e-6), 2e-5)
    both = nnx.LayerNorm(6, reduction_axes=(1, 2), use_bias=False, use_scale=False, rngs=nnx.Rngs(0))
    assert_close(both(x), normalize(np.asarray(x, np.float64), (1, 2), 1e-6), 2e-5)
    z = x + 1j * x[::-1]
    distance = z - z.mean(-1, keepdims=True)
    variance = (np.abs(distance) ** 2).mean(-1, keepdims=True)
    assert_close(layer(z), distance / np.sqrt(variance + 1e-6), 2e-5)
    mask = np.array([True, True, True, False, True, False])
    kept = np.asarray(x, np.float64)[..., mask]
    mean, variance = kept.mean(-1, keepdims=True), kept.var(-1, keepdims=True)
    assert_close(layer(x, mask=jnp.asarray(mask)), (x - mean) / np.sqrt(variance + 1e-6), 2e-5)


def test_layer_norm_without_fast_variance() -> None:
    layer = nnx.LayerNorm(8, use_fast_variance=False, rngs=nnx.Rngs(0))
    x = draw(4, 8) + 1000  # the mean of squares less the square of the mean would lose all but two digits here
    assert_close(layer(x), normalize(np.asarray(x, np.float64), (1,), 1e-6), 1e-3)


def test_rms_norm() -> None:
    x = 0.1 * draw(4, 3, 16) + 0.05
    for epsilon in (1e-6, 1e-2):
        layer = nnx.RMSNorm(16, epsilon=epsilon, scale_init=RANDOM_BIAS, rngs=nnx.Rngs(0))
        square = (np.asarray(x, np.float64) ** 2).mean(-1, keepdims=True)
        assert_close(layer(x), x / np.sqrt(square + epsilon) * read(layer.scale), 5e-6)
    plain, square = nnx.RMSNorm(16, rngs=nnx.Rngs(0)), (np.asarray(x * 0.01, np.float64) ** 2).mean(-1, keepdims=True)
    assert_close(plain(x * 0.01), x * 0.01 / np.sqrt(square + 1e-6), 5e-6)


@pytest.mark.parametrize("norm", ["LayerNorm", "RMSNorm", "GroupNorm"])
def test_norm_statistics_in_bfloat16(norm: str) -> None:
    x = jnp.asarray(draw(64, 512) + 3.0, jnp.bfloat16)
    exact = np.asarray(x.astype(jnp.float32), np.float64)
    groups = {"num_groups": 4} if norm == "GroupNorm" else {}
    y = getattr(nnx, norm)(512, dtype=jnp.bfloat16, rngs=nnx.Rngs(0), **groups)(x)
    expected = {
        "LayerNorm": normalize(exact, (1,), 1e-6),
        "RMSNorm": exact / np.sqrt((exact**2).mean(1, keepdims=True) + 1e-6),
        "GroupNorm": normalize(exact.reshape(64, 4, 128), (2,), 1e-6).reshape(64, 512),
    }[norm]
    assert y.dtype == jnp.bfloat16
    # Statistics are sums in float32, as Flax documents; only the factor, the product and the sum are rounded. Means
    # over 64 rows, so that a bias of the statistics shows that one rounding of each element would hide.
    error = np.asarray(y.astype(jnp.float32), np.float64) - expected
    assert np.abs(error).max() < 8 * BFLOAT16 * np.abs(expected).max()
    assert np.abs((error * np.sign(expected)).mean(1)).max() < BFLOAT16 / 2


def test_batch_norm() -> None:
    x = 2 * draw(8, 4, 3) + 1
    layer = nnx.BatchNorm(
        3, momentum=0.9, epsilon=1e-3, scale_init=RANDOM_BIAS, bias_init=RANDOM_BIAS, rngs=nnx.Rngs(0)
    )
    scale, bias = read(layer.scale), read(layer.bias)
    wide = np.asarray(x, np.float64)
    assert_close(layer(x), normalize(wide, (0, 1), 1e-3) * scale + bias, 1e-5)
    mean, variance = 0.1 * wide.mean((0, 1)), 0.9 + 0.1 * wide.var((0, 1))
    assert_close(layer.mean[...], mean)
    assert_close(layer.var[...], variance)
    expected = (wide - mean) / np.sqrt(variance + 1e-3) * scale + bias
    assert_close(layer(x, use_running_average=True), expected, 1e-5)
    layer.eval()
    assert_close(layer(x), expected, 1e-5)
    assert_close(layer.mean[...], mean)


def test_batch_norm_defaults() -> None:
    x = 0.01 * draw(16, 3)
    layer = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    assert_close(layer(x), normalize(np.asarray(x, np.float64), (0,), 1e-5), 2e-5)
    assert_close(layer.var[...], 0.99 + 0.01 * np.asarray(x, np.float64).var(0))
    running = nnx.BatchNorm(3, use_running_average=True, rngs=nnx.Rngs(0))
    assert_close(running(x), x / np.sqrt(1 + 1e-5))


def test_group_norm() -> None:
    x = draw(2, 5, 12) + 0.5
    layer = nnx.GroupNorm(
        12, num_groups=3, epsilon=1e-3, scale_init=RANDOM_BIAS, bias_init=RANDOM_BIAS, rngs=nnx.Rngs(0)
    )
    grouped = normalize(np.asarray(x, np.float64).reshape(2, 5, 3, 4), (1, 3), 1e-3).reshape(x.shape)
    assert_close(layer(x), grouped * read(layer.scale) + read(layer.bias), 1e-5)
    by_size = nnx.GroupNorm(12, num_groups=None, group_size=2, use_scale=False, use_bias=False, rngs=nnx.Rngs(0))
    expected = normalize(np.asarray(x, np.float64).reshape(2, 5, 6, 2), (1, 3), 1e-6).reshape(x.shape)
    assert_close(by_size(x), expected, 1e-5)


def test_dropout() -> None:
    layer = nnx.Dropout(0.25, rngs=nnx.Rngs(dropout=0))
    x = np.full((100, 200), 3.0, np.float32)
    y = np.asarray(layer(x))
    assert_close(y[y != 0], np.full((y != 0).sum(), 4.0))  # what stays is divided by the share that stays
    assert (y == 0).mean() == pytest.approx(0.25, abs=5 * np.sqrt(0.25 * 0.75 / x.size))
    assert not np.array_equal(y, layer(x))  # the stream moves on
    assert_close(layer(x, deterministic=True), x, 0)
    layer.eval()
    assert_close(layer(x), x, 0)
    layer.train()
    assert (np.asarray(layer(x)) == 0).any()


def test_dropout_rates_and_broadcast() -> None:
    x = np.ones((50, 40), np.float32)
    assert_close(nnx.Dropout(0.0)(x), x, 0)
    assert_close(nnx.Dropout(1.0, rngs=nnx.Rngs(0))(x), 0 * x, 0)
    assert_close(nnx.Dropout(0.5, deterministic=True)(x), x, 0)
    rows = np.asarray(nnx.Dropout(0.5, broadcast_dims=(1,), rngs=nnx.Rngs(0))(x))
    assert (rows == rows[:, :1]).all()
    assert set(np.unique(rows)) == {0.0, 2.0}
    named = nnx.Dropout(0.5, rng_collection="noise")
    assert_close(named(x, rngs=nnx.Rngs(noise=3)), named(x, rngs=nnx.Rngs(noise=3, dropout=4)), 0)
