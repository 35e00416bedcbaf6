"""`jax.numpy`'s elementwise functions, reductions and products against NumPy in float64.

Source: NumPy, whose functions `jax.numpy` documents to follow.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nightjar_models.conformance.agreement import BFLOAT16, assert_close, assert_same, draw

X, Y = 2 * draw(3, 4), draw(3, 4, seed=1)
X[0, 1] = Y[0, 1]  # equal somewhere
POSITIVE = np.abs(X) + 0.1
FLAGS, OTHERS = X > 0, Y > 0
ODD = np.array([[np.nan, np.inf, -np.inf, 0.0], [1.5, -0.0, -2.5, 3.0]], np.float32)

ONE = {
    "abs": X, "ceil": X, "cos": X, "exp": X, "expm1": 0.01 * X, "floor": X, "isfinite": ODD, "isinf": ODD, "isnan": ODD,
    "log": POSITIVE, "log1p": 0.01 * POSITIVE, "log2": POSITIVE, "logical_not": FLAGS, "negative": X, "round": X,
    "sign": ODD[1:], "sin": X, "sqrt": POSITIVE, "square": X, "tan": Y, "tanh": X, "nan_to_num": ODD, "arctan": X,
    "sinh": X, "cosh": X, "log10": POSITIVE, "reciprocal": POSITIVE, "cbrt": X, "exp2": X, "rint": X, "trunc": X,
}  # fmt: skip
ALSO: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("ceil", "floor", "trunc", "cbrt"), (int,)), "negative": (int, complex), "reciprocal": (complex,),
    "sign": (int, complex), "round": (int, complex), "rint": (complex,),
}  # fmt: skip
TWO = (
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "equal", "not_equal", "greater", "greater_equal",
    "less", "less_equal", "arctan2", "hypot", "true_divide", "logaddexp", "copysign",
)  # fmt: skip


@pytest.mark.parametrize("name", ONE)
def test_elementwise(name: str) -> None:
    x = ONE[name]
    # NumPy in float32 for `nan_to_num`, whose largest number depends on the dtype.
    wide = x.astype(np.float64) if x.dtype == np.float32 and name != "nan_to_num" else x
    seen = np.asarray(getattr(jnp, name)(x))
    expected = getattr(np, name)(wide)
    assert seen.dtype == (np.bool_ if expected.dtype == np.bool_ else np.float32)
    assert_close(seen, expected)
    if name in ("expm1", "log1p"):  # exact near 0, which is what they are for
        np.testing.assert_allclose(seen, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", ONE)
def test_elementwise_of_other_types(name: str) -> None:
    numbers = np.array([[1, 2, 0], [-3, 5, 1]], np.int32)
    given = {int: numbers, bool: numbers > 0, complex: (numbers + 1j * numbers[::-1]).astype(np.complex64)}
    for kind in ALSO.get(name, (int, bool, complex)):
        x: Any = given[kind]
        with np.errstate(all="ignore"):
            expected = getattr(np, name)(x)
            if expected.dtype.kind in "fc":  # NumPy computes the functions of flags in float16
                expected = getattr(np, name)(x.astype(complex if kind is complex else float))
        seen = np.asarray(getattr(jnp, name)(x))
        assert seen.dtype.kind == expected.dtype.kind
        assert_close(seen, expected, 1e-5)


@pytest.mark.parametrize("name", TWO)
def test_elementwise_of_two(name: str) -> None:
    assert_close(getattr(jnp, name)(X, Y), getattr(np, name)(X.astype(np.float64), Y.astype(np.float64)))
    row, column = X[:1].astype(np.float64), Y[:, :1].astype(np.float64)
    assert_close(getattr(jnp, name)(X[:1], Y[:, :1]), getattr(np, name)(row, column))
    if name not in ("arctan2", "hypot", "logaddexp", "copysign"):
        first, second = X + 1j * Y, Y + 1j * X[::-1]  # equal in their real part somewhere
        wide = first.astype(np.complex128), second.astype(np.complex128)
        assert_close(getattr(jnp, name)(first, second), getattr(np, name)(*wide), 5e-6)
        numbers, others = np.array([3, -2, 0, 5]), np.array([3, 1, -4, 2])
        assert_close(getattr(jnp, name)(numbers, others), getattr(np, name)(numbers, others))
        if name not in ("subtract", "divide", "true_divide"):
            assert_close(getattr(jnp, name)(FLAGS, OTHERS), getattr(np, name)(FLAGS, OTHERS))


def test_power_mod_and_floor_divide() -> None:
    assert_close(jnp.power(POSITIVE, Y), POSITIVE.astype(np.float64) ** Y)
    assert_close(jnp.asarray(X) ** 3, X.astype(np.float64) ** 3, 5e-6)
    numbers = np.array([-7, -3, 0, 3, 7])
    for divisor in (3, -3):
        assert_same(jnp.mod(numbers, divisor), numbers % divisor)
        assert_same(jnp.remainder(numbers, divisor), numbers % divisor)
        assert_same(jnp.floor_divide(numbers, divisor), numbers // divisor)
        assert_same(jnp.asarray(numbers) % divisor, numbers % divisor)
    assert_close(jnp.mod(X, 0.7), np.mod(X.astype(np.float64), 0.7), 5e-6)


def test_logical() -> None:
    for name in ("logical_and", "logical_or", "logical_xor"):
        assert_same(getattr(jnp, name)(FLAGS, OTHERS), getattr(np, name)(FLAGS, OTHERS))
    assert_same(jnp.logical_and(np.array([0, 1, 2]), np.array([1, 0, 3])), np.array([False, False, True]))


def test_operators_of_arrays() -> None:
    x, y = jnp.asarray(X), jnp.asarray(Y)
    wide, other = X.astype(np.float64), Y.astype(np.float64)
    for seen, expected in (
        (x + y, wide + other), (x - y, wide - other), (x * y, wide * other), (x / y, wide / other), (-x, -wide),
        (2 - x, 2 - wide), (1 / x, 1 / wide), (abs(x), abs(wide)), (x @ y.T, wide @ other.T), (3 * x, 3 * wide),
    ):  # fmt: skip
        assert_close(seen, expected, 5e-6)
    for seen, expected in ((x < y, X < Y), (x >= y, X >= Y), (x == y, X == Y), (x != y, X != Y), (~(x > y), ~(X > Y))):
        assert_same(seen, expected)


def test_clip() -> None:
    for low, high in ((-1.0, 0.5), (None, 0.5), (-1.0, None)):
        assert_same(jnp.clip(X, low, high), np.clip(X, low, high))
    assert_same(jnp.clip(X, min=0.0), np.clip(X, 0, None))
    assert_same(jnp.asarray(X).clip(-1, 1), X.clip(-1, 1))


REDUCTIONS = ("sum", "mean", "prod", "max", "min", "std", "var", "any", "all", "argmax", "argmin", "nanmean", "nansum")


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    x = draw(2, 3, 4)
    values: Any = x > 0.3 if name in ("any", "all") else x.astype(np.float64)
    given = values if name in ("any", "all") else x
    cases: list[dict[str, Any]] = [{}, {"axis": 0}, {"axis": -1}, {"axis": 1, "keepdims": True}]
    if not name.startswith("arg"):
        cases += [{"axis": (0, 2)}, {"axis": (1, 2), "keepdims": True}]
    for case in cases:
        seen = getattr(jnp, name)(given, **case)
        assert_close(seen, getattr(np, name)(values, **case))
        if not name.startswith("nan"):
            assert_close(getattr(jnp.asarray(given), name)(**case), getattr(np, name)(values, **case))


def test_reductions_where_and_initial() -> None:
    x, kept = draw(3, 4), draw(3, 4, seed=2) > 0
    kept[:, 0] = True
    wide = x.astype(np.float64)
    for name in ("sum", "mean", "std", "var"):
        assert_close(getattr(jnp, name)(x, axis=1, where=kept), getattr(np, name)(wide, axis=1, where=kept))
    assert_close(jnp.max(x, axis=1, where=kept, initial=-9.0), np.max(wide, axis=1, where=kept, initial=-9.0))
    assert_close(jnp.min(x, axis=1, where=kept, initial=0.5), np.min(wide, axis=1, where=kept, initial=0.5))
    assert_close(jnp.sum(x, initial=3.0), wide.sum() + 3)
    assert_same(jnp.any(kept, axis=0, where=x > 0), np.any(kept, axis=0, where=x > 0))
    for name in ("std", "var"):
        assert_close(getattr(jnp, name)(x, axis=0, ddof=1), getattr(np, name)(wide, axis=0, ddof=1))


def test_reductions_of_nothing() -> None:
    for name, value in (("sum", 0.0), ("prod", 1.0), ("any", False), ("all", True)):
        assert_close(getattr(jnp, name)(X[:0]), np.asarray(value), 0)
        assert_close(getattr(jnp, name)(X[:0], axis=0), np.full(4, value), 0)
    for name in ("max", "min", "argmax", "argmin"):
        with pytest.raises(ValueError, match=r"zero-size|empty"):
            getattr(jnp, name)(X[:0])


def test_reductions_of_bfloat16_are_summed_in_float32() -> None:
    x = jnp.asarray(np.full(4096, 1.0078125), jnp.bfloat16)
    for name, expected in (("sum", 4096 * 1.0078125), ("mean", 1.0078125)):
        seen = getattr(jnp, name)(x)
        assert seen.dtype == jnp.bfloat16
        assert_close(seen.astype(jnp.float32), expected, BFLOAT16)  # a sum in bfloat16 stops at 256
    assert jnp.sum(x, dtype=jnp.float32).dtype == jnp.float32
    assert jnp.mean(np.arange(4)).dtype == jnp.float32
    assert jnp.sum(np.array([True, True])).dtype == jnp.int32
    assert int(jnp.sum(np.array([True, True]))) == 2


def test_count_nonzero_and_bincount() -> None:
    numbers = np.array([[0, 1, 2], [2, 0, 2]])
    assert_same(jnp.count_nonzero(numbers), np.asarray(4))
    assert_same(jnp.count_nonzero(numbers, axis=0), np.count_nonzero(numbers, axis=0))
    assert_same(jnp.bincount(numbers.ravel(), length=5), np.bincount(numbers.ravel(), minlength=5))
    assert_close(jnp.bincount(numbers.ravel(), weights=X.ravel()[:6]), np.bincount(numbers.ravel(), X.ravel()[:6]))


def test_cumsum_cumprod_and_diff() -> None:
    wide = X.astype(np.float64)
    for axis in (0, 1, -1, None):
        assert_close(jnp.cumsum(X, axis=axis), np.cumsum(wide, axis=axis))
        assert_close(jnp.cumprod(Y, axis=axis), np.cumprod(Y.astype(np.float64), axis=axis))
    assert_close(jnp.diff(X, axis=0), np.diff(wide, axis=0))
    assert jnp.cumsum(np.array([1, 2]), dtype=jnp.float32).dtype == jnp.float32


@pytest.mark.parametrize(
    "subscripts",
    ["ij,jk->ik", "ij,jk", "bij,bjk->bik", "bqhd,bkhd->bhqk", "ij->ji", "ii->i", "ij->", "i,j->ij", "...i,ij->...j",
     "ij,jk,kl->il", "ijk,ik->j"],
)  # fmt: skip
def test_einsum(subscripts: str) -> None:
    terms = subscripts.partition("->")[0].split(",")
    sizes = {letter: size for size, letter in enumerate("bdhijklq", 2)}
    sizes["i"] = 3
    shapes = [[5] * term.startswith("...") + [sizes[letter] for letter in term if letter != "."] for term in terms]
    operands = [draw(*shape, seed=index) for index, shape in enumerate(shapes)]
    expected = np.einsum(subscripts, *(operand.astype(np.float64) for operand in operands))
    for optimize in ("optimal", "greedy", True, False):
        assert_close(jnp.einsum(subscripts, *operands, optimize=optimize), expected, 1e-5)


def test_einsum_in_bfloat16() -> None:
    x, y = (jnp.asarray(draw(8, 8, seed=seed), jnp.bfloat16) for seed in (1, 2))
    exact = np.asarray(x.astype(jnp.float32), np.float64) @ np.asarray(y.astype(jnp.float32))
    assert jnp.einsum("ij,jk->ik", x, y).dtype == jnp.bfloat16
    wide = jnp.einsum("ij,jk->ik", x, y, preferred_element_type=jnp.float32)
    assert wide.dtype == jnp.float32
    assert_close(wide, exact, 5e-6)
    assert_close(jnp.einsum("ij,jk->ik", x, y).astype(jnp.float32), exact, BFLOAT16)


def test_products() -> None:
    x, y, z = draw(2, 3, 4), draw(2, 4, 5), draw(4)
    wide = [value.astype(np.float64) for value in (x, y, z)]
    assert_close(jnp.matmul(x, y), np.matmul(wide[0], wide[1]), 5e-6)
    assert_close(jnp.matmul(x, z), wide[0] @ wide[2], 5e-6)
    assert_close(jnp.dot(x, y[0]), np.dot(wide[0], wide[1][0]), 5e-6)
    assert_close(jnp.dot(z, z), np.dot(wide[2], wide[2]), 5e-6)
    assert_close(jnp.dot(x, y), np.dot(wide[0], wide[1]), 5e-6)
    assert_close(jnp.outer(z, X), np.outer(wide[2], X))
    assert_close(jnp.vdot(z, z), np.vdot(wide[2], wide[2]), 5e-6)
    assert_close(jnp.inner(x, z), np.inner(wide[0], wide[2]), 5e-6)
    assert_close(jnp.tensordot(x, y, axes=([0, 2], [0, 1])), np.tensordot(*wide[:2], axes=([0, 2], [0, 1])), 5e-6)
    assert_close(jnp.kron(X, Y), np.kron(X.astype(np.float64), Y))
    assert jnp.dot(z, z, preferred_element_type=jnp.float32).dtype == jnp.float32
    assert_close(jnp.cross(draw(2, 3), draw(2, 3, seed=1)), np.cross(draw(2, 3), draw(2, 3, seed=1)))


def test_linalg() -> None:
    square = draw(4, 4).astype(np.float64) + 4 * np.eye(4)
    symmetric = square @ square.T
    for order in (None, 1, 2, np.inf):
        assert_close(jnp.linalg.norm(draw(5), ord=order), np.linalg.norm(draw(5).astype(np.float64), ord=order))
    assert_close(jnp.linalg.norm(X, axis=1, keepdims=True), np.linalg.norm(X.astype(np.float64), axis=1, keepdims=True))
    assert_close(jnp.linalg.norm(X), np.linalg.norm(X.astype(np.float64)))
    assert_close(jnp.linalg.inv(square.astype(np.float32)), np.linalg.inv(square), 1e-5)
    assert_close(jnp.linalg.solve(square.astype(np.float32), draw(4)), np.linalg.solve(square, draw(4)), 1e-5)
    assert_close(jnp.linalg.det(square.astype(np.float32)), np.linalg.det(square), 1e-5)
    lower = np.asarray(jnp.linalg.cholesky(symmetric.astype(np.float32)))
    assert_close(lower @ lower.T, symmetric, 1e-5)
    assert_same(np.triu(lower, 1), np.zeros((4, 4), np.float32))
    values, vectors = (np.asarray(part) for part in jnp.linalg.eigh(symmetric.astype(np.float32)))
    assert_close(vectors @ np.diag(values) @ vectors.T, symmetric, 1e-4)
    assert (np.diff(values) >= 0).all()
    q, r = (np.asarray(part) for part in jnp.linalg.qr(X.T))
    assert_close(q @ r, X.T, 1e-5)
    assert_close(q.T @ q, np.eye(3), 1e-5)
    u, s, vh = (np.asarray(part) for part in jnp.linalg.svd(X, full_matrices=False))
    assert_close(u * s @ vh, X, 1e-5)
    assert_close(s, np.linalg.svd(X.astype(np.float64), compute_uv=False), 1e-5)


def test_complex_numbers() -> None:
    z = jnp.asarray(X + 1j * Y)
    assert z.dtype == jnp.complex64
    assert_same(jnp.real(z), X)
    assert_same(jnp.imag(z), Y)
    assert_close(jnp.abs(z), np.hypot(X.astype(np.float64), Y))
    assert_same(jnp.conj(z).imag, -Y)
    assert_close(jnp.angle(z), np.angle(X.astype(np.float64) + 1j * Y))
    assert_close(jnp.exp(1j * jnp.pi).real, -1.0)


def test_constants() -> None:
    assert (jnp.pi, jnp.e, jnp.inf) == (np.pi, np.e, np.inf)
    assert np.isnan(jnp.nan)
    assert jnp.newaxis is None


def test_comparisons_of_whole_arrays() -> None:
    near = X + 1e-6
    assert bool(jnp.allclose(X, near, atol=1e-5))
    assert not bool(jnp.allclose(X, X + 1e-3))
    assert bool(jnp.allclose(X, X * (1 + 5e-6)))  # rtol is 1e-5 and atol 1e-8, as in NumPy
    assert not bool(jnp.allclose(X, X * (1 + 5e-5)))
    assert_same(jnp.isclose(ODD, ODD), np.isclose(ODD, ODD))
    assert_same(jnp.isclose(ODD, ODD, equal_nan=True), np.isclose(ODD, ODD, equal_nan=True))
    assert bool(jnp.array_equal(X, X))
    assert not bool(jnp.array_equal(X, Y))
    assert not bool(jnp.array_equal(X, X[:, :3]))
    assert not bool(jnp.array_equal(ODD, ODD))
    assert bool(jnp.array_equal(ODD, ODD, equal_nan=True))


def test_gradients_of_elementwise_functions() -> None:
    for name in ("sin", "cos", "exp", "log", "sqrt", "tanh", "square", "abs", "log1p", "expm1"):
        x = POSITIVE.astype(np.float64)
        function = getattr(np, name)
        slope = (function(x + 1e-6) - function(x - 1e-6)) / 2e-6
        _, pullback = jax.vjp(getattr(jnp, name), POSITIVE)
        assert_close(pullback(np.ones_like(POSITIVE))[0], slope, 5e-6)
    tied = jax.grad(lambda x, y: jnp.maximum(x, y).sum(), argnums=(0, 1))(np.float32(1), np.float32(1))
    assert tuple(map(float, tied)) == (0.5, 0.5)
