"""`jax.numpy`'s arrays: making, indexing, joining and sorting them, and their dtypes, against NumPy exactly.

Source: NumPy, whose functions `jax.numpy` documents to follow; "Type promotion semantics" of docs.jax.dev.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nightjar_models.conformance.agreement import assert_close, assert_same, draw

X: Any = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
MIXED: Any = np.array([[3, 1, 2, 1], [0, 5, 5, -1]], np.int32)

# Name of the function, arguments: the result must be NumPy's.
CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("arange", (5,), {}), ("arange", (2, 9, 3), {}), ("arange", (5, 0, -2), {}), ("broadcast_to", (X[0],
    (2, 3, 4)), {}),
    ("broadcast_to", (X[:1, :, :1], (2, 3, 4)), {}), ("expand_dims", (X, 1), {}), ("expand_dims", (X, (0, -1)), {}),
    ("zeros_like", (X,), {}), ("ones_like", (X,), {}), ("full_like", (X, 7), {}), ("full", ((2, 3), 5), {}),
    ("reshape", (X, (4, 6)), {}), ("reshape", (X, (3, -1)), {}), ("reshape", (X, -1), {}),
    ("reshape", (X, (4, 6)), {"order": "F"}), ("ravel", (X,), {}), ("squeeze", (X[:1],), {}), ("squeeze",
    (X[:1, :, :1], 0), {}),
    ("squeeze", (X[:1, :, :1],), {"axis": (0, 2)}), ("transpose", (X,), {}), ("transpose", (X, (1, 2, 0)), {}),
    ("permute_dims", (X, (2, 0, 1)), {}), ("swapaxes", (X, 0, -1), {}), ("moveaxis", (X, 0, -1), {}),
    ("matrix_transpose", (X,), {}),
    ("concatenate", ([X, X + 1],), {}), ("concatenate", ([X, X + 1],), {"axis": -1}), ("concatenate",
    ([X, X],), {"axis": None}),
    ("concat", ([X, X + 1],), {"axis": 1}), ("stack", ([X, X + 1],), {}), ("stack", ([X, X + 1],), {"axis": -1}),
    ("stack", ([X, X + 1],), {"axis": 1}), ("vstack", ([X[0], X[1]],), {}), ("hstack", ([X[0], X[1]],), {}),
    ("repeat", (X, 2), {"axis": 1}), ("repeat", (X, 3), {}), ("repeat", (MIXED[0], np.array([1, 0, 2, 1])), {}),
    ("tile", (X[0], 2), {}), ("tile", (X[0], (2, 1, 3)), {}), ("flip", (X,), {}), ("flip", (X, 1), {}), ("flip",
    (X,), {"axis": (0, 2)}),
    ("roll", (X, 2), {}), ("roll", (X, 1), {"axis": 1}), ("roll", (X, -1), {"axis": 0}), ("roll", (X,
    (1, 2)), {"axis": (0, 2)}),
    ("pad", (X[0], 1), {}), ("pad", (X[0], ((1, 0), (0, 2))), {}), ("pad", (X[0], ((1, 2),
    (0, 0))), {"constant_values": 9}),
    ("pad", (X[0], ((0, 0), (2, 1))), {"mode": "edge"}), ("pad", (X[0], ((0, 0), (2, 1))), {"mode": "reflect"}),
    ("pad", (X[0], ((0, 0), (2, 1))), {"mode": "wrap"}), ("tril", (X,), {}), ("tril", (X[0], -1), {}), ("tril",
    (X[0], 1), {}),
    ("triu", (X,), {}), ("triu", (X[0], 1), {}), ("tri", (3, 4), {}), ("eye", (3,), {}), ("eye", (3, 4, 1), {}),
    ("identity", (3,), {}),
    ("diag", (X[0],), {}), ("diag", (X[0, 0],), {}), ("diag", (X[0], 1), {}), ("diagonal", (X,), {}), ("trace",
    (X[0],), {}),
    ("take", (X, np.array([2, 0])), {"axis": 1}), ("take", (X, np.array([[5, 0]])), {}), ("argsort", (MIXED,), {}),
    ("argsort", (MIXED,), {"axis": 0}), ("sort", (MIXED,), {}), ("sort", (MIXED,), {"axis": None}), ("flatnonzero",
    (MIXED,), {}),
    ("take_along_axis", (MIXED, np.argsort(MIXED, 1)), {"axis": 1}), ("take_along_axis",
    (MIXED, np.array([[1, 0, 1, 0]])), {"axis": 0}),
    ("where", (MIXED > 1, MIXED, -1), {}), ("where", (MIXED[0] > 1, MIXED, 0), {}), ("select",
    ([MIXED > 2, MIXED > 0], [MIXED, 9]), {}),
    ("size", (X,), {}), ("shape", (X,), {}), ("ndim", (X,), {}), ("isin", (MIXED, np.array([1, 5])), {}), ("unique",
    (MIXED,), {}),
    ("searchsorted", (np.array([1, 3, 5]), np.array([0, 3, 6])), {}), ("digitize", (MIXED, np.array([0, 2, 4])), {}),
    ("append", (MIXED, MIXED), {}), ("delete", (MIXED, 1), {"axis": 1}), ("rot90", (MIXED,), {}), ("array",
    ([[1, 2], [3, 4]],), {}),
    ("searchsorted", (np.array([1, 3, 3, 5]), 3), {"side": "right"}), ("argwhere", (MIXED,), {}), ("atleast_2d",
    (MIXED[0],), {}),
    ("pad", (X[0], ((1, 2), (3, 1))), {"constant_values": (9,)}), ("pad", (X[0], 2), {"mode": "symmetric"}),
    ("pad", (X[0], ((1, 2), (3, 1))), {"mode": "maximum"}), ("pad", (X[0], (2, 1)), {"mode": "minimum"}),
    ("pad", (X[0], 2), {"mode": "linear_ramp", "end_values": -8}), ("pad", (X[0] * 2, (1, 3)), {"mode": "mean"}),
    ("pad", (X[0], ((0, 0), (5, 6))), {"mode": "reflect"}), ("pad", (X[0], 1), {"mode": "median"}),
    ("pad", (X[0], ((1, 2), (3, 1))), {"constant_values": ((1, 2), (3, 4))}), ("concatenate", (X,), {"axis": 1}),
    ("concatenate", (X,), {}), ("stack", (X,), {"axis": 1}), ("vstack", (X,), {}), ("iscomplexobj", (X + 1j,), {}),
    ("dstack", ([X, X + 1],), {}), ("column_stack", ([X, X + 1],), {}),
    ("iscomplexobj", (X,), {}), ("isrealobj", (X,), {}), ("size", (X, 1), {}), ("array", (X,), {"ndmin": 5}),
    ("full", (np.array([2, 3]), 5), {}), ("broadcast_to", (X[:1], np.array([2, 3, 4])), {}),
]  # fmt: skip


@pytest.mark.parametrize("name", sorted({name for name, _, _ in CASES}))
def test_like_numpy(name: str) -> None:
    for function, arguments, options in CASES:
        if function == name:
            assert_same(getattr(jnp, name)(*arguments, **options), getattr(np, name)(*arguments, **options))


def test_zeros_ones_and_empty() -> None:
    for name, value in (("zeros", 0), ("ones", 1), ("empty", 0)):
        make = getattr(jnp, name)
        assert_same(make((2, 3)), np.full((2, 3), value, np.float32))
        assert make((2, 3)).dtype == jnp.float32
        assert make(4, dtype=jnp.int32).dtype == jnp.int32
        assert make(np.array([2, 3])).shape == (2, 3)
        assert make(np.int64(2)).shape == make(jnp.asarray(2)).shape == (2,)
        assert make((), jnp.bfloat16).dtype == jnp.bfloat16
    assert jnp.zeros_like(X, dtype=jnp.float32).dtype == jnp.float32
    assert jnp.ones_like(X, shape=(2,)).shape == (2,)
    assert jnp.full((2,), 1.5, dtype=jnp.bfloat16).dtype == jnp.bfloat16
    assert_same(jnp.full((2, 2), np.array([1, 2])), np.array([[1, 2], [1, 2]]))


@pytest.mark.parametrize("dtype", ["float32", "int32", "bfloat16", "complex64"])
def test_dtype_is_the_one_asked_for(dtype: str) -> None:
    parts = [MIXED, MIXED + 1]
    for name, given in (
        ("concatenate", (parts,)), ("stack", (parts,)), ("vstack", (parts,)), ("hstack", (parts,)), ("sum", (MIXED,)),
        ("mean", (MIXED,)), ("prod", (MIXED,)), ("cumsum", (MIXED,)), ("cumprod", (MIXED,)), ("arange", (4,)),
        ("linspace", (0, 6, 4)), ("array", (MIXED,)), ("asarray", (MIXED,)), ("zeros_like", (MIXED,)),
        ("ones_like", (MIXED,)), ("full_like", (MIXED, 3)), ("eye", (3,)), ("tri", (3,)), ("identity", (3,)),
        ("nansum", (MIXED,)), ("trace", (X[0],)), ("full", (3, 2)), ("zeros", (3,)), ("ones", (3,)),
    ):  # fmt: skip
        seen, plain = getattr(jnp, name)(*given, dtype=dtype), getattr(np, name)(*given)
        assert seen.dtype == jnp.dtype(dtype), name
        if dtype != "int32" or name != "mean":
            assert_close(seen.astype(jnp.complex64), plain.astype(complex), 1e-5)


def test_linspace() -> None:
    assert_close(jnp.linspace(0, 1, 5), np.linspace(0, 1, 5))
    assert_close(jnp.linspace(2.0, -1.0, 7, endpoint=False), np.linspace(2, -1, 7, endpoint=False))
    assert jnp.linspace(0, 1).shape == (50,)
    assert_close(jnp.arange(0, 1, 0.25), np.arange(0, 1, 0.25))
    assert jnp.arange(3.0).dtype == jnp.float32
    assert jnp.arange(3, dtype=jnp.bfloat16).dtype == jnp.bfloat16


def test_meshgrid_split_and_unstack() -> None:
    x, y = np.arange(3), np.arange(4)
    for options in ({}, {"indexing": "ij"}, {"sparse": True}):
        for seen, expected in zip(jnp.meshgrid(x, y, **options), np.meshgrid(x, y, **options), strict=True):
            assert_same(seen, expected)
    for sections, axis in ((2, -1), ([1, 3], -1), (3, 1), ([1], 0)):
        parts = jnp.split(X, sections, axis=axis)
        for seen, expected in zip(parts, np.split(X, sections, axis=axis), strict=True):
            assert_same(seen, expected)
    for index, seen in enumerate(jnp.unstack(X, axis=1)):
        assert_same(seen, X[:, index])
    assert len(jnp.array_split(np.arange(7), 3)) == 3


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("argmax", ()), ("argmin", ()), ("argsort", ()), ("sort", ()), ("cumsum", ()), ("cumprod", ()), ("flip", ()),
        ("diff", ()), ("split", (2,)), ("array_split", (2,)), ("unstack", ()), ("repeat", (2,)), ("roll", (1,)),
        ("take", (np.array([0, 5]),)), ("squeeze", ()), ("median", ()), ("ptp", ()), ("nonzero", ()),
    ],
)  # fmt: skip
def test_axis_by_default(name: str, arguments: tuple[Any, ...]) -> None:
    seen, expected = getattr(jnp, name)(X, *arguments), getattr(np, name)(X, *arguments)
    pairs = zip(seen, expected, strict=True) if isinstance(expected, (list, tuple)) else [(seen, expected)]
    for ours, theirs in pairs:
        assert_close(ours, theirs, 1e-5)


def test_array_and_asarray() -> None:
    assert jnp.array([1, 2]).dtype == jnp.int32
    assert jnp.array([1.0, 2]).dtype == jnp.float32
    assert jnp.asarray([True]).dtype == jnp.bool_
    assert jnp.array([1, 2], dtype=jnp.bfloat16).dtype == jnp.bfloat16
    assert jnp.asarray(np.arange(2.0)).dtype == jnp.float32  # without 64 bits
    array = jnp.arange(3)
    assert jnp.asarray(array) is array
    assert isinstance(array, jnp.ndarray)
    assert isinstance(array, jax.Array)
    buffer = np.arange(3)
    copied = jnp.array(buffer)
    buffer[0] = 9
    assert_same(copied, np.arange(3))
    assert_same(jnp.copy(array), np.arange(3))
    with pytest.raises(NotImplementedError, match="order"):
        jnp.copy(array, order="F")
    assert_same(jnp.array([[1], [2]], ndmin=3), np.array([[[1], [2]]]))
    assert jnp.array(np.arange(3), copy=False, ndmin=2).shape == (1, 3)
    mixed = jax.jit(lambda x: jnp.array([[x, 1.0], [2, x]]))(5.0)  # of numbers and of traced values
    assert_same(mixed, np.array([[5, 1], [2, 5]], np.float32))


def test_indexing() -> None:
    x = jnp.asarray(X)
    rows, columns = np.array([0, 1, 1]), np.array([2, 0, 3])
    for index in (
        0, -1, (1, 2), (slice(None), 1), (..., slice(1, 3)), (0, slice(None, None, -1)), (None, 1),
        (rows, slice(None), columns),
        (rows, columns[:1]), (slice(None), columns[:2] % 3, None), X > 5, (1, slice(2, None), ..., np.newaxis),
    ):  # fmt: skip
        assert_same(x[index], X[index])
    assert int(x[0, 0, 99]) == 3  # out of bounds: the last one, as documented
    assert_same(x.at[:, 99].get(mode="fill", fill_value=-1), np.full((2, 4), -1))
    row, far = jnp.arange(4.0), np.array([5, -5, 1])
    for mode, wanted in (({}, [np.nan, np.nan, 1]), ({"mode": "clip"}, [3, 0, 1]), ({"mode": "wrap"}, [1, 3, 1])):
        assert_same(jnp.take(row, far, **mode), np.float32(wanted))
        if mode.get("mode") != "wrap":
            assert_same(jnp.take_along_axis(row, far, 0, **mode), np.float32(wanted))
    with pytest.raises(TypeError):
        x[[0, 1]]
    with pytest.raises(TypeError, match="immutable"):
        x[0] = 1


def test_at_updates() -> None:
    x, rows = jnp.asarray(X), np.array([1, 1, 0])
    for name, update in (
        ("set", None),
        ("add", np.add),
        ("multiply", np.multiply),
        ("max", np.maximum),
        ("min", np.minimum),
    ):
        for index in ((0, 1), (..., 2), (slice(None), slice(0, 2)), (1, [0, 2])):
            expected: Any = X.copy()
            expected[index] = 7 if update is None else update(expected[index], 7)
            target = index if not isinstance(index[-1], list) else (1, np.array(index[-1]))
            assert_same(getattr(x.at[target], name)(7), expected)
    added = np.zeros(2, np.int32)
    np.add.at(added, rows, np.array([1, 2, 4]))
    assert_same(jnp.zeros(2, jnp.int32).at[rows].add(np.array([1, 2, 4])), added)
    assert_same(jnp.zeros(2, jnp.int32).at[5].set(1), np.zeros(2, np.int32))  # dropped, as documented
    assert_same(x, X)


def test_where_of_one_argument_and_nonzero() -> None:
    for seen, expected in zip(jnp.where(MIXED > 1), np.where(MIXED > 1), strict=True):
        assert_same(seen, expected)
    (padded,) = jnp.nonzero(MIXED[0] > 1, size=4, fill_value=-1)
    assert_same(padded, np.array([0, 2, -1, -1]))
    assert_same(jnp.unique(MIXED, size=6, fill_value=99), np.array([-1, 0, 1, 2, 3, 5]))


def test_sort_is_stable_and_descending() -> None:
    values = np.array([2, 1, 2, 1, 0])
    assert_same(jnp.argsort(values), np.array([4, 1, 3, 0, 2]))
    assert_same(jnp.argsort(values, descending=True), np.array([0, 2, 1, 3, 4]))
    assert_same(jnp.sort(values, descending=True), np.array([2, 2, 1, 1, 0]))
    assert_close(jnp.sort(draw(9)), np.sort(draw(9)), 0)
    assert int(jnp.argmax(values)) == 0  # the first of equals
    assert int(jnp.argmin(values)) == 4
    assert_same(jnp.argmax(MIXED, axis=1, keepdims=True), np.argmax(MIXED, axis=1, keepdims=True))
    assert_close(jnp.percentile(draw(9), 30), np.percentile(draw(9).astype(np.float64), 30))
    assert_close(jnp.median(draw(3, 4), axis=1), np.median(draw(3, 4).astype(np.float64), axis=1))
    assert_close(jnp.interp(np.array([0.5, 9.0]), np.arange(3.0), np.array([1.0, 3, 2])), np.array([2.0, 2.0]))


def test_array_methods() -> None:
    x = jnp.asarray(X)
    assert (x.shape, x.ndim, x.size, x.dtype.name, len(x), x.nbytes) == ((2, 3, 4), 3, 24, "int32", 2, 96)
    for seen, expected in (
        (x.T, X.T), (x.mT, X.transpose(0, 2, 1)), (x.reshape(6, 4), X.reshape(6, 4)),
        (x.reshape((6, -1)), X.reshape(6, 4)),
        (x.ravel(), X.ravel()), (x.flatten(), X.ravel()), (x.transpose(1, 0, 2), X.transpose(1, 0, 2)),
        (x.swapaxes(0, 1), X.swapaxes(0, 1)), (x[:1].squeeze(0), X[0]), (x.repeat(2, axis=0), X.repeat(2, axis=0)),
        (x.take(np.array([1]), axis=0), X[1:]), (x.cumsum(0), X.cumsum(0)), (x.sum(), X.sum()), (x.sort(), X),
    ):  # fmt: skip
        assert_same(seen, expected)
    assert x[0, 0].tolist() == [0, 1, 2, 3]
    assert x[0, 0, 1].item() == 1
    assert [int(row.sum()) for row in x] == [int(row.sum()) for row in X]
    assert x.astype(jnp.float32).dtype == jnp.float32
    assert jnp.astype(x, jnp.bfloat16).dtype == jnp.bfloat16
    assert_same(jnp.asarray([1.7, -1.7]).astype(jnp.int32), np.array([1, -1]))
    assert_same(jnp.asarray([0.0, 2.0]).astype(bool), np.array([False, True]))


@pytest.mark.parametrize(
    ("first", "second", "result"),
    [("int32", "float32", "float32"), ("bfloat16", "float32", "float32"), ("bfloat16", "float16", "float32"),
     ("int32", "bfloat16", "bfloat16"), ("int8", "uint8", "int16"), ("bool", "int32", "int32"),
     ("float32", "complex64", "complex64"),
     ("int8", "int32", "int32"), ("uint8", "int32", "int32"), ("float16", "float32", "float32"),
     ("int16", "float16", "float16")],
)  # fmt: skip
def test_type_promotion(first: str, second: str, result: str) -> None:
    x, y = jnp.ones(2, first), jnp.ones(2, second)
    assert (x + y).dtype == (y * x).dtype == jnp.promote_types(first, second) == jnp.dtype(result)
    assert jnp.result_type(x, y) == jnp.concatenate([x, y]).dtype == jnp.where(True, x, y).dtype == jnp.dtype(result)


def test_python_numbers_are_weak() -> None:
    for dtype in (jnp.bfloat16, jnp.float16, jnp.float32):
        assert (jnp.ones(2, dtype) * 2.5 + 1).dtype == dtype
        assert jnp.maximum(jnp.ones(2, dtype), 0.0).dtype == dtype
    assert (jnp.ones(2, jnp.int8) + 1).dtype == jnp.int8
    assert (jnp.arange(2) * 0.5).dtype == jnp.float32
    assert (jnp.arange(3) / 2).dtype == jnp.float32


def test_dtypes() -> None:
    for name in ("float32", "bfloat16", "float16", "int8", "int16", "int32", "uint8", "uint16", "uint32", "bool_",
                 "complex64",
                 "float8_e4m3fn", "float8_e5m2", "float64", "int64"):  # fmt: skip
        scalar = getattr(jnp, name)
        assert jnp.dtype(scalar).name == name.rstrip("_")
        if "64" not in name:
            assert scalar(1).dtype == jnp.dtype(scalar)
    assert jnp.issubdtype(jnp.bfloat16, jnp.floating)
    assert jnp.issubdtype(jnp.int8, jnp.integer)
    assert not jnp.issubdtype(jnp.int8, jnp.floating)
    assert jnp.issubdtype(jnp.float32, jnp.inexact)
    assert jax.dtypes.issubdtype(jax.random.key(0).dtype, jax.dtypes.prng_key)
    assert not jax.dtypes.issubdtype(jnp.uint32, jax.dtypes.prng_key)
    assert jax.dtypes.canonicalize_dtype(np.float64) == jnp.float32


def test_finfo_and_iinfo() -> None:
    for dtype, bits, largest in (
        (jnp.bfloat16, 7, 2.0**128 - 2.0**120),
        (jnp.float16, 10, 65504.0),
        (jnp.float8_e4m3fn, 3, 448.0),
    ):
        assert float(jnp.finfo(dtype).eps) == 2.0**-bits
        assert float(jnp.finfo(dtype).max) == largest
    assert float(jnp.finfo(jnp.float32).min) == np.finfo(np.float32).min
    assert float(jnp.finfo(jnp.float32).tiny) == 2.0**-126
    assert (jnp.iinfo(jnp.int8).min, jnp.iinfo(jnp.int8).max) == (-128, 127)


def test_rounding_to_bfloat16() -> None:
    # To the nearest, ties to the even of seven bits: 1 + 2**-8 lies half-way and goes down, 1 + 3 * 2**-8 goes up.
    values = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-16, 3.14159265], np.float32)
    assert_same(
        jnp.asarray(values).astype(jnp.bfloat16).astype(jnp.float32),
        np.array([1, 1 + 2**-6, 1 + 2**-7, 3.140625], np.float32),
    )
    assert_same(
        jnp.asarray([300.0, 17.0]).astype(jnp.float8_e4m3fn).astype(jnp.float32), np.array([288, 16], np.float32)
    )
