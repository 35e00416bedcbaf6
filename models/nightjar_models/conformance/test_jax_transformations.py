"""`jax`'s transformations, random numbers and trees against derivatives by hand, moments and plain Python.

Source: the documentation of `jax`, `jax.random` and `jax.tree`; Griewank and Walther 2008 (forward and reverse mode).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy import special, stats

from nightjar_models.conformance.agreement import assert_close, assert_same, draw

X, W = draw(4), draw(4, 3, seed=1)


def compute(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w).sum()


def differentiate() -> tuple[Any, Any]:
    """The gradients of `compute` by hand."""
    slope = 1 - np.tanh(X.astype(np.float64) @ W) ** 2
    return W @ slope, np.outer(X, slope)


def test_grad_and_value_and_grad() -> None:
    by_x, by_w = differentiate()
    assert_close(jax.grad(compute)(X, W), by_x)
    assert_close(jax.grad(compute, argnums=1)(X, W), by_w)
    both = jax.grad(compute, argnums=(0, 1))(X, W)
    assert_close(both[1], by_w)
    value, gradient = jax.value_and_grad(compute)(X, W)
    assert_close(value, np.tanh(X.astype(np.float64) @ W).sum())
    assert_close(gradient, by_x)
    (value, aux), gradient = jax.value_and_grad(lambda x: (compute(x, W), x.shape), has_aux=True)(X)
    assert aux == (4,)
    assert_close(gradient, by_x)
    with pytest.raises(TypeError, match="scalar"):
        jax.grad(lambda x: x)(X)
    with pytest.raises(TypeError, match="positional arguments"):
        jax.grad(compute, argnums=1)(X)


def test_jvp_vjp_and_jacobians() -> None:
    def layer(x: Any) -> Any:
        return jnp.tanh(x @ W)

    jacobian = (1 - np.tanh(X.astype(np.float64) @ W) ** 2)[:, None] * W.T
    tangent, cotangent = draw(4, seed=2), draw(3, seed=3)
    y, pushed = jax.jvp(layer, (X,), (tangent,))
    assert_close(pushed, jacobian @ tangent)
    y, pull = jax.vjp(layer, X)
    assert_close(y, np.tanh(X.astype(np.float64) @ W))
    assert_close(pull(cotangent)[0], cotangent @ jacobian)
    assert_close(jax.jacfwd(layer)(X), jacobian)
    assert_close(jax.jacrev(layer)(X), jacobian)
    hessian = jax.hessian(lambda x: (x**3).sum() + x[0] * x[1])(X)
    expected = np.diag(6 * X.astype(np.float64))
    expected[0, 1] = expected[1, 0] = 1
    assert_close(hessian, expected)
    _, linear = jax.linearize(layer, X)
    assert_close(linear(tangent), jacobian @ tangent)


def test_custom_vjp_and_custom_jvp() -> None:
    @jax.custom_vjp
    def clip(x: Any, limit: Any) -> Any:
        return x

    clip.defvjp(lambda x, limit: (x, limit), lambda limit, g: (jnp.clip(g, -limit, limit), None))
    assert_close(jax.grad(lambda x: 5 * clip(x, 2.0))(1.0), 2.0)
    clip.defvjp(lambda x, limit: (x, limit), lambda limit, g: (3 * g, None), optimize_remat=True)
    assert_close(jax.grad(jax.checkpoint(lambda x: jnp.sin(clip(x, 2.0))))(1.0), 3 * np.cos(1.0))

    @jax.custom_jvp
    def log1pexp(x: Any) -> Any:
        return jnp.log(1 + jnp.exp(x))

    log1pexp.defjvps(lambda t, out, x: (1 - 1 / (1 + jnp.exp(x))) * t)
    assert_close(jax.grad(log1pexp)(100.0), 1.0)


def test_checkpoint_has_the_same_gradient() -> None:
    by_x, _ = differentiate()
    for wrap in (jax.checkpoint, jax.remat):
        assert_close(jax.grad(wrap(compute))(X, W), by_x)
    static = jax.checkpoint(lambda x, w, flag: compute(x, w) if flag else x.sum(), static_argnums=(2,))
    assert_close(jax.grad(static)(X, W, True), by_x)
    assert_close(jax.grad(static)(X, W, False), np.ones(4))
    policy = jax.checkpoint_policies.dots_saveable
    assert_close(jax.grad(jax.checkpoint(compute, policy=policy))(X, W), by_x)


def test_vmap() -> None:
    batch = draw(5, 4, seed=4)
    expected = batch.astype(np.float64) @ W
    assert_close(jax.vmap(lambda x: x @ W)(batch), expected)
    assert_close(jax.vmap(lambda x, w: x @ w, in_axes=(0, None))(batch, W), expected)
    assert_close(jax.vmap(lambda x, w: x @ w, in_axes=(1, None))(batch.T, W), expected)
    assert_close(jax.vmap(lambda x: x @ W, out_axes=1)(batch), expected.T)
    sums = jax.vmap(lambda x: jax.lax.psum(x, "rows"), axis_name="rows")(batch)
    assert_close(sums, np.broadcast_to(batch.astype(np.float64).sum(0), (5, 4)))
    trees = jax.vmap(lambda tree: tree["a"] + tree["b"], in_axes=({"a": 0, "b": None},))({"a": batch, "b": X})
    assert_close(trees, batch.astype(np.float64) + X)
    per_example = jax.vmap(jax.grad(lambda x: jnp.tanh(x @ W).sum()))(batch)
    assert_close(per_example, (1 - np.tanh(expected) ** 2) @ W.T)
    with pytest.raises(TypeError, match="in_axes must be"):
        jax.vmap(lambda x, y: x, in_axes=(0, "1"))(X, X)
    with pytest.raises(ValueError, match="inconsistent sizes"):
        jax.vmap(lambda x, y: x)(X, draw(3))


def test_jit() -> None:
    traces = []

    @jax.jit
    def double(x: Any) -> Any:
        traces.append(x.shape)
        return 2 * x

    for _ in range(2):
        assert_close(double(X), 2 * X)
    assert traces == [(4,)]
    double(draw(2))
    assert traces == [(4,), (2,)]
    power = jax.jit(lambda x, n: x**n, static_argnums=1)
    assert_close(power(3.0, 2), 9.0)
    named = jax.jit(lambda x, *, flag: x if flag else -x, static_argnames="flag")
    assert_close(named(X, flag=False), -X)
    given = jnp.ones(8)
    donated = jax.jit(lambda x: x + 1, donate_argnums=0)(given)
    assert given.is_deleted()
    assert_close(donated, np.full(8, 2.0))
    compiled = jax.jit(compute).lower(X, W).compile()
    assert_close(compiled(X, W), np.tanh(X.astype(np.float64) @ W).sum())


def test_shapes_without_computing() -> None:
    shape = jax.eval_shape(lambda x: {"y": x @ W}, jax.ShapeDtypeStruct((7, 4), jnp.float32))
    assert shape == {"y": jax.ShapeDtypeStruct((7, 3), jnp.float32)}
    jaxpr = jax.make_jaxpr(lambda x: jnp.sin(x) * 2)(1.0)
    assert [equation.primitive.name for equation in jaxpr.eqns] == ["sin", "mul"]
    assert jax.typeof(jnp.ones((2, 3))).shape == (2, 3)
    assert jnp.ones(2).block_until_ready().shape == (2,)
    assert_same(jax.device_get({"x": jnp.arange(2)})["x"], np.arange(2))
    assert jax.block_until_ready([jnp.ones(2)])[0].shape == (2,)


def test_named_scope_and_debug_print(capfd: pytest.CaptureFixture[str]) -> None:
    @jax.jit
    def layer(x: Any) -> Any:
        with jax.named_scope("attention"):
            jax.debug.print("x is {x}", x=x)
            return jnp.sin(x)

    layer(3.0)
    jax.effects_barrier()
    assert "x is 3.0" in capfd.readouterr().out
    assert "attention" in layer.lower(3.0).as_text(debug_info=True)


def test_pure_callback_and_config() -> None:
    seen = jax.jit(lambda x: jax.pure_callback(lambda x: np.asarray(x) * 3, jax.ShapeDtypeStruct((), jnp.int32), x))(2)
    assert int(seen) == 6
    assert not jax.config.jax_enable_x64
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        jnp.log(-1.0)


# Random numbers. Each limit is five standard errors of the statistic.
SIZE = 20_000
KEY = 42


def test_keys() -> None:
    for make in (jax.random.key, jax.random.PRNGKey):
        key = make(KEY)
        children = jax.random.split(key, 3)
        assert children.shape[0] == 3
        for keys in ([*children, key], [*(jax.random.fold_in(key, index) for index in range(3)), key]):
            is_typed = jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
            raw = [np.asarray(jax.random.key_data(child) if is_typed else child) for child in keys]
            assert len({data.tobytes() for data in raw}) == 4
    typed, old = jax.random.key(KEY), jax.random.PRNGKey(KEY)
    with pytest.raises(TypeError, match="given a PRNG key"):
        jax.random.key(typed)
    assert_same(jax.random.key_data(typed), np.asarray(old))
    assert_same(old, np.array([0, KEY], np.uint32))
    assert_same(jax.random.normal(typed, (3,)), np.asarray(jax.random.normal(old, (3,))))
    assert jax.random.split(typed).shape == (2,)
    assert jax.random.split(typed, (2, 3)).shape == (2, 3)
    assert jax.dtypes.issubdtype(typed.dtype, jax.dtypes.prng_key)
    for make in (jax.random.key, jax.random.PRNGKey):
        assert_same(jax.random.key_data(make(KEY, impl="threefry2x32")), np.array([0, KEY], np.uint32))
    assert (
        jax.random.key_data(jax.random.key(KEY, impl="rbg")).shape == jax.random.PRNGKey(KEY, impl="rbg").shape == (4,)
    )
    assert str(jax.random.key_impl(jax.random.key(KEY, impl="rbg"))) == "rbg"


def test_threefry_gives_the_published_numbers() -> None:
    # The test vectors of Random123: Threefry 2x32, 20 rounds.
    for key, counter, expected in (
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ):
        bits = threefry_2x32(np.array(key, np.uint32), np.array(counter, np.uint32))
        assert_same(bits, np.array(expected, np.uint32))


def test_uniform_and_normal() -> None:
    key = jax.random.key(KEY)
    uniform = np.asarray(jax.random.uniform(key, (SIZE,)))
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert stats.kstest(uniform, "uniform").pvalue > 1e-6
    scaled = np.asarray(jax.random.uniform(key, (SIZE,), minval=-2.0, maxval=3.0))
    assert_close(scaled, -2 + 5 * uniform, 5e-6)
    normal = np.asarray(jax.random.normal(key, (SIZE,)))
    assert stats.kstest(normal, "norm").pvalue > 1e-6
    assert jax.random.normal(key, (2,), jnp.bfloat16).dtype == jnp.bfloat16
    assert jax.random.normal(key).shape == ()
    truncated = np.asarray(jax.random.truncated_normal(key, -1.0, 2.0, (SIZE,)))
    assert stats.kstest(truncated, stats.truncnorm(-1, 2).cdf).pvalue > 1e-6
    gumbel = np.asarray(jax.random.gumbel(key, (SIZE,)))
    assert stats.kstest(gumbel, "gumbel_r").pvalue > 1e-6
    assert not np.array_equal(normal, jax.random.normal(jax.random.key(KEY + 1), (SIZE,)))


def test_randint_bernoulli_and_categorical() -> None:
    key = jax.random.key(KEY)
    integers = np.asarray(jax.random.randint(key, (SIZE,), 3, 8))
    assert stats.chisquare(np.bincount(integers, minlength=8)[3:]).pvalue > 1e-6
    assert integers.dtype == np.int32
    flips = np.asarray(jax.random.bernoulli(key, 0.3, (SIZE,)))
    assert flips.dtype == np.bool_
    assert flips.mean() == pytest.approx(0.3, abs=5 * np.sqrt(0.21 / SIZE))
    logits = np.array([0.0, 1.0, -1.0], np.float32)
    for axis, given in ((-1, logits), (0, logits[:, None])):
        shape = (SIZE,) if axis == -1 else (SIZE, 1)
        counts = np.bincount(
            np.asarray(jax.random.categorical(key, given, axis=axis, shape=shape)).ravel(), minlength=3
        )
        assert stats.chisquare(counts, SIZE * special.softmax(logits.astype(np.float64))).pvalue > 1e-6


def test_choice_and_permutation() -> None:
    key = jax.random.key(KEY)
    order = np.asarray(jax.random.permutation(key, 50))
    assert sorted(order.tolist()) == list(range(50))
    assert order.tolist() != list(range(50))
    rows = np.asarray(jax.random.permutation(key, draw(6, 2)))
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, draw(6, 2).tolist()))
    once = np.asarray(jax.random.choice(key, 10, (10,), replace=False))
    assert sorted(once.tolist()) == list(range(10))
    weighted = np.asarray(jax.random.choice(key, np.array([1, 5]), (SIZE,), p=np.array([0.2, 0.8])))
    assert (weighted == 5).mean() == pytest.approx(0.8, abs=5 * np.sqrt(0.16 / SIZE))


TREE = {"b": [1, (2, None)], "a": {"x": 3}}


@dataclasses.dataclass
class Pair:
    first: Any
    second: Any
    name: str = "pair"


jax.tree_util.register_dataclass(Pair, data_fields=["first", "second"], meta_fields=["name"])


@jax.tree_util.register_pytree_node_class
class Box:
    def __init__(self, value: Any) -> None:
        self.value = value

    def tree_flatten(self) -> tuple[Any, Any]:
        return (self.value,), None

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Box:
        return cls(*children)


@pytest.mark.parametrize("module", ["tree", "tree_util"])
def test_trees(module: str) -> None:
    def call(name: str, *arguments: Any, **options: Any) -> Any:
        function = getattr(jax.tree, name) if module == "tree" else getattr(jax.tree_util, f"tree_{name}")
        return function(*arguments, **options)

    assert call("leaves", TREE) == [3, 1, 2]  # keys in order; None is no leaf
    assert call("leaves", TREE, is_leaf=lambda x: x is None) == [3, 1, 2, None]
    assert call("map", lambda x: 10 * x, TREE) == {"b": [10, (20, None)], "a": {"x": 30}}
    assert call("map", lambda x, y: x - y, TREE, TREE) == {"b": [0, (0, None)], "a": {"x": 0}}
    leaves, structure = call("flatten", TREE)
    assert leaves == [3, 1, 2]
    assert call("unflatten", structure, [6, 5, 4]) == {"b": [5, (4, None)], "a": {"x": 6}}
    assert call("structure", TREE) == structure
    assert structure != call("structure", {"a": 1})
    assert call("reduce", lambda total, x: total * 10 + x, TREE) == 312
    assert call("reduce", lambda total, x: total + x, TREE, 100) == 106
    assert call("all", {"a": True, "b": [True]})
    assert not call("all", {"a": True, "b": [False]})
    with pytest.raises(ValueError, match="key"):
        call("map", lambda x, y: x, TREE, {"a": 1})

    def is_pair(node: Any) -> bool:
        return isinstance(node, tuple)

    assert call("map", str, TREE, is_leaf=is_pair) == {"b": ["1", "(2, None)"], "a": {"x": "3"}}
    assert call("flatten", TREE, is_pair)[0] == call("leaves", TREE, is_pair) == [3, 1, (2, None)]
    assert call("structure", TREE, is_pair).num_leaves == 3
    assert call("reduce", lambda total, x: [*total, x], TREE, [], is_leaf=is_pair) == [3, 1, (2, None)]
    assert call("all", {"a": (0,), "b": [True]}, is_leaf=is_pair)  # a pair that is not empty is true


def test_trees_with_paths() -> None:
    found = jax.tree_util.tree_flatten_with_path(TREE)[0]
    names = [jax.tree_util.keystr(path) for path, _ in found]
    assert names == ["['a']['x']", "['b'][0]", "['b'][1][0]"]
    assert found[0][0] == (jax.tree_util.DictKey("a"), jax.tree_util.DictKey("x"))
    assert jax.tree_util.keystr(found[0][0], simple=True, separator="/") == "a/x"
    assert jax.tree.leaves_with_path(TREE) == jax.tree_util.tree_leaves_with_path(TREE) == found
    assert jax.tree.flatten_with_path(TREE)[0] == found
    for function in (jax.tree.map_with_path, jax.tree_util.tree_map_with_path):
        named = function(lambda path, x: (jax.tree_util.keystr(path), x), {"a": [5]})
        assert named == {"a": [("['a'][0]", 5)]}


def test_own_classes_in_trees() -> None:
    doubled = jax.tree.map(lambda x: 2 * x, [Pair(1, Box(2)), Box(Pair(3, 4))])
    assert (doubled[0].first, doubled[0].second.value, doubled[1].value.second, doubled[0].name) == (2, 4, 8, "pair")
    assert_close(jax.jit(lambda pair: pair.first * pair.second)(Pair(jnp.ones(2), 3.0)), np.full(2, 3.0))
    gradient = jax.grad(lambda pair: pair.first * pair.second)(Pair(2.0, 5.0))
    assert (float(gradient.first), float(gradient.second)) == (5.0, 2.0)


def test_image_resize_and_segment_sum() -> None:
    row = np.arange(4, dtype=np.float32)[None]
    assert_same(jax.image.resize(row, (1, 8), "nearest"), np.repeat(row, 2, 1))
    # Half-pixel centres: output i lies at (i + 0.5) / 2 - 0.5, and the ends keep their value.
    expected = np.clip((np.arange(8) + 0.5) / 2 - 0.5, 0, 3)[None]
    assert_close(jax.image.resize(row, (1, 8), "bilinear"), expected)
    sums = jax.ops.segment_sum(X, np.array([0, 2, 2, 0]), num_segments=3)
    assert_close(sums, [X[0] + X[3], 0, X[1] + X[2]])


def test_scipy_special() -> None:
    x = np.abs(draw(6)) + 0.2
    wide = x.astype(np.float64)
    for name in ("erf", "gammaln", "expit", "logsumexp", "digamma", "ndtri", "erfinv"):
        given = x / 4 if name in ("ndtri", "erfinv") else x
        assert_close(getattr(jax.scipy.special, name)(given), getattr(special, name)(given.astype(np.float64)), 2e-5)
    assert_close(jax.scipy.special.logsumexp(x, b=np.float32(2)), special.logsumexp(wide, b=2))
