"""RMSNorm in C++ and in Pallas computes what the formula says, with gradients, batches and bad input."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from nightjar_models.errors import ToolError
from nightjar_models.kernels import rms_norm, rms_norm_pallas
from nightjar_models.kernels.build import build, cache_folder

Norm = Callable[..., jax.Array]
NORMS = {"ffi": rms_norm.rms_norm, "pallas": rms_norm_pallas.rms_norm}
# float32 sums of 96 products of order one; bfloat16 keeps 8 bits of each result
TOLERANCES = {"float32": 2e-6, "bfloat16": 2**-8}

pytestmark = pytest.mark.compiler


def reference(
    x: NDArray[Any], scale: NDArray[Any], dy: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """The result and its gradients in float64, derived by hand from y = x r s with r = (mean x^2 + e)^(-1/2)."""
    x, scale, dy = (np.asarray(one, np.float64) for one in (x, scale, dy))
    r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + rms_norm.EPSILON)
    dx = r * dy * scale - x * r**3 * (dy * scale * x).mean(-1, keepdims=True)
    return x * r * scale, dx, (dy * x * r).reshape(-1, x.shape[-1]).sum(0)


def arguments(dtype: str, *rows: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    keys = jax.random.split(jax.random.key(len(rows)), 3)
    shapes = (*rows, 96), (96,), (*rows, 96)
    x, scale, dy = (jax.random.normal(key, shape).astype(dtype) for key, shape in zip(keys, shapes, strict=True))
    return x, scale, dy


def close(found: jax.Array, expected: NDArray[Any], tolerance: float) -> None:
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("rows", [(2, 5), (0,)])
def test_result_and_gradients_are_those_of_the_formula(norm: Norm, dtype: str, rows: tuple[int, ...]) -> None:
    x, scale, dy = arguments(dtype, *rows)
    y, backward = jax.vjp(norm, x, scale)
    dx, dscale = backward(dy)
    expected = reference(*map(np.asarray, (x, scale, dy)))
    assert (y.dtype, dx.dtype, dscale.dtype) == (x.dtype, x.dtype, scale.dtype)
    for found, right in zip((y, dx, dscale), expected, strict=True):
        close(found, right, TOLERANCES[dtype] * np.abs(right).max(initial=1.0))


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")  # since JAX 0.12
@pytest.mark.parametrize("width", [96, 128])
def test_for_a_gpu_pallas_makes_kernels_of_triton_whatever_the_width(width: int) -> None:
    def loss(x: jax.Array, scale: jax.Array) -> jax.Array:
        return rms_norm_pallas.rms_norm(x, scale).sum()

    h100 = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", num_cores=132, platform="gpu")  # JAX 0.12 asks which
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), abstract_device=h100)):
        program = jax.jit(jax.grad(loss)).trace(jnp.ones((5, width)), jnp.ones(width))
        text = program.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__gpu$xla.gpu.triton") >= 2  # forward and backward; no interpreter's loop
    assert "stablehlo.while" not in text


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_a_batch_of_calls_equals_the_calls(norm: Norm) -> None:
    x, scale, dy = arguments("float32", 3, 4)
    scales = jnp.stack([scale, 2 * scale, -scale])

    def gradients(x: jax.Array, scale: jax.Array, dy: jax.Array) -> Any:
        return jax.vjp(norm, x, scale)[1](dy)

    batched = jax.vmap(norm, (0, None))(x, scale)
    np.testing.assert_allclose(batched, norm(x, scale), rtol=1e-6)
    each = jax.vmap(gradients)(x, scales, dy)
    for index in range(3):
        for found, right in zip(each, gradients(x[index], scales[index], dy[index]), strict=True):
            np.testing.assert_allclose(found[index], right, rtol=1e-5, atol=1e-6)


def test_the_largest_and_smallest_numbers_survive() -> None:
    x = jnp.array([[1e18, -1e18], [0.0, 0.0], [1e-30, 1e-30], [jnp.nan, 1.0]])
    found = np.asarray(rms_norm.rms_norm(x, jnp.ones(2)))
    np.testing.assert_allclose(found[:3], [[1, -1], [0, 0], [1e-30 / rms_norm.EPSILON**0.5] * 2], rtol=1e-6)
    assert np.isnan(found[3]).all()


def test_arguments_that_do_not_fit_are_an_error_and_no_crash() -> None:
    rms_norm.register("cpu")
    with pytest.raises(Exception, match=r"expected x \[..., D\] and scale \[D\]"):
        jax.block_until_ready(rms_norm._call_forward(jnp.ones((2, 4)), jnp.ones(3)))  # type: ignore[no-untyped-call]
    with pytest.raises(Exception, match="expected float32 or bfloat16"):
        jax.block_until_ready(rms_norm.rms_norm(jnp.ones((2, 4), jnp.int32), jnp.ones(4, jnp.int32)))  # type: ignore[no-untyped-call]


def test_a_missing_or_failing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = jax.ffi.include_dir()
    with pytest.raises(ToolError, match="ended with 1") as failed:
        build("rms_norm", "cpu", str(tmp_path / "absent"), tmp_path)
    assert "xla/ffi/api/ffi.h" in str(failed.value)
    assert list(tmp_path.glob("*.so")) == []
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolError, match=r"expected g\+\+ on PATH.*Hint: install it"):
        build("rms_norm", "cpu", headers, tmp_path)


def test_the_kernel_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rms_norm.register("cpu")
    folder, headers = cache_folder(os.environ), jax.ffi.include_dir()
    before = build("rms_norm", "cpu", headers, folder).stat().st_mtime_ns
    assert build("rms_norm", "cpu", headers, folder).stat().st_mtime_ns == before
    assert cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/nightjar-models")


@pytest.mark.slow
@pytest.mark.nvcc
def test_the_cuda_source_compiles_and_has_both_symbols(tmp_path: Path) -> None:
    library = build("rms_norm", "cuda", jax.ffi.include_dir(), tmp_path)
    symbols = subprocess.run(["nm", "-D", library], capture_output=True, text=True, check=True).stdout
    assert {"RmsNormForward", "RmsNormBackward"} <= set(symbols.split())


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_a_gpu_computes_the_same(norm: Norm) -> None:
    x, scale, dy = arguments("bfloat16", 64, 33)
    y, backward = jax.vjp(norm, x, scale)
    expected = reference(*map(np.asarray, (x, scale, dy)))
    for found, right in zip((y, *backward(dy)), expected, strict=True):
        close(found, right, TOLERANCES["bfloat16"] * max(1.0, np.abs(right).max()))
