"""Transformations, optimizers and metrics of `flax.nnx`: gradients against those by hand, loops against NumPy.

Source: the guides "Transforms", "Checkpointing", "Performance" and "Metrics" of flax.readthedocs.io.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from nightjar_models.conformance.agreement import assert_close, assert_same, draw, read

X, Y = draw(6, 3), draw(6, 2)


class Tower(nnx.Module):
    """A linear layer that counts its calls."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.linear = nnx.Linear(3, 2, rngs=rngs)
        self.calls = nnx.BatchStat(jnp.zeros((), jnp.int32))

    def __call__(self, x: Any) -> Any:
        self.calls[...] += 1
        return self.linear(x)


def make_tower() -> Tower:
    return Tower(nnx.Rngs(0))


def compute_loss(model: Any, x: Any = X, y: Any = Y) -> Any:
    return ((model(x) - y) ** 2).mean()


def differentiate(kernel: Any, bias: Any) -> tuple[Any, Any, Any]:
    """The loss above and its gradients, by hand."""
    error = X @ kernel + bias - Y
    return (error**2).mean(), 2 * X.T @ error / error.size, 2 * error.sum(0) / error.size


def test_value_and_grad() -> None:
    model = make_tower()
    loss, kernel, bias = differentiate(read(model.linear.kernel), read(model.linear.bias))
    value, gradient = nnx.value_and_grad(compute_loss)(model)
    assert_close(value, loss)
    assert_close(read(gradient["linear"]["kernel"]), kernel)
    assert_close(read(gradient["linear"]["bias"]), bias)
    assert "calls" not in gradient  # of parameters only
    assert int(read(model.calls)) == 1  # and the state moves on


def test_grad_has_aux_and_argnums() -> None:
    model = make_tower()
    _, kernel, _ = differentiate(read(model.linear.kernel), read(model.linear.bias))
    gradient, aux = nnx.grad(lambda model: (compute_loss(model), {"rows": 6}), has_aux=True)(model)
    assert aux == {"rows": 6}
    assert_close(read(gradient["linear"]["kernel"]), kernel)
    by_x = nnx.grad(compute_loss, argnums=1)(model, X, Y)
    error = X @ read(model.linear.kernel) + read(model.linear.bias) - Y
    assert_close(by_x, 2 * error @ read(model.linear.kernel).T / error.size)


def test_grad_of_a_part() -> None:
    model = make_tower()
    only_bias = nnx.All(nnx.Param, nnx.PathContains("bias"))
    gradient = nnx.grad(compute_loss, argnums=nnx.DiffState(0, only_bias))(model)
    assert {path for path, _ in nnx.to_flat_state(gradient)} == {("linear", "bias")}


def test_jit_keeps_the_state() -> None:
    model = make_tower()

    @nnx.jit
    def forward(model: Any, x: Any) -> Any:
        return model(x)

    for count in (1, 2):
        assert_close(forward(model, X), X @ read(model.linear.kernel) + read(model.linear.bias))
        assert int(read(model.calls)) == count
    for options in ({"static_argnames": "negative"}, {"static_argnums": 1}):
        turn = nnx.jit(lambda x, negative: -x if negative else x, **options)  # a branch of Python
        assert [float(turn(jnp.asarray(3.0), negative)) for negative in (True, False)] == [-3.0, 3.0]
    for options in ({"donate_argnums": 0}, {"donate_argnames": "x"}):
        given = jnp.ones(8)
        assert_close(nnx.jit(lambda x: x + 1, **options)(given), np.full(8, 2.0))
        assert given.is_deleted()
    rows = jax.sharding.NamedSharding(jax.make_mesh((2,), ("x",)), jax.sharding.PartitionSpec("x"))
    for name in ("in_shardings", "out_shardings"):
        assert nnx.jit(lambda x: 2 * x, **{name: rows})(jnp.asarray(X)).sharding.is_equivalent_to(rows, 2)


def test_options_of_loops_and_maps() -> None:
    x = jnp.asarray(X)
    means = nnx.vmap(lambda x: x - jax.lax.pmean(x, "rows"), axis_name="rows")(x)
    assert_close(means, X - X.astype(np.float64).mean(0))
    assert nnx.vmap(lambda x: x, in_axes=None, axis_size=5)(x).shape == (5, 6, 3)
    carry = {"in_axes": (nnx.Carry, 0), "out_axes": (nnx.Carry, 0)}
    back, seen = nnx.scan(lambda total, x: (total + x, total), reverse=True, unroll=2, **carry)(jnp.zeros(3), x)
    sums = np.cumsum(X[::-1].astype(np.float64), 0)
    assert_close(back, sums[-1])
    assert_close(seen, np.concatenate([sums[-2::-1], np.zeros((1, 3))]))
    static = nnx.remat(lambda x, negative: -x if negative else x, static_argnums=1)
    assert_close(nnx.grad(lambda x: static(x, True).sum())(x), -np.ones((6, 3)))


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_optimizer(jit: bool) -> None:
    model = make_tower()
    optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)

    def step(model: Any, optimizer: Any) -> Any:
        loss, gradient = nnx.value_and_grad(compute_loss)(model)
        optimizer.update(model, gradient)
        return loss

    run = nnx.jit(step) if jit else step
    kernel, bias = read(model.linear.kernel), read(model.linear.bias)
    traces = [0.0, 0.0]
    for count in range(3):
        loss, *gradients = differentiate(kernel, bias)
        assert_close(run(model, optimizer), loss)
        traces = [gradient + 0.9 * trace for gradient, trace in zip(gradients, traces, strict=True)]
        kernel, bias = kernel - 0.1 * traces[0], bias - 0.1 * traces[1]
        assert_close(read(model.linear.kernel), kernel)
        assert_close(read(model.linear.bias), bias)
        assert int(read(optimizer.step)) == count + 1
        assert optimizer.step[...].dtype == jnp.uint32
    assert int(read(model.calls)) == 3


def test_optimizer_of_some_parameters() -> None:
    model = make_tower()
    kernel, bias = read(model.linear.kernel), read(model.linear.bias)
    only_bias = nnx.All(nnx.Param, nnx.PathContains("bias"))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=only_bias)
    gradient = nnx.grad(compute_loss, argnums=nnx.DiffState(0, only_bias))(model)
    optimizer.update(model, gradient)
    assert_close(read(model.linear.kernel), kernel, 0)
    assert_close(read(model.linear.bias), bias - 0.1 * differentiate(kernel, bias)[2])


def test_optimizer_state_is_saved_and_loaded() -> None:
    model = make_tower()
    optimizer = nnx.ModelAndOptimizer(model, optax.adam(0.1))
    kernel = read(model.linear.kernel)
    gradient = nnx.grad(compute_loss)(model)
    optimizer.update(gradient)
    # Adam's first step is the rate times the sign of the gradient, whose moments cancel.
    direction = differentiate(kernel, read(model.linear.bias) * 0)[1]
    assert_close(read(model.linear.kernel), kernel - 0.1 * np.sign(direction), 2e-5)
    state = nnx.state(optimizer)
    again = nnx.ModelAndOptimizer(make_tower(), optax.adam(0.1))
    nnx.update(again, state)
    assert_same(again.model.linear.kernel[...], np.asarray(model.linear.kernel[...]))
    assert int(read(again.step)) == 1


def test_train_state() -> None:
    model = make_tower()
    kernel = read(model.linear.kernel)
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    state = nnx.TrainState.create(graphdef, params=params, tx=optax.sgd(0.1))

    def loss(params: Any) -> Any:
        return compute_loss(nnx.merge(state.graphdef, params, rest, copy=True))

    new = state.apply_gradients(jax.grad(loss)(state.params))
    assert int(new.step) == 1
    expected = kernel - 0.1 * differentiate(kernel, np.zeros(2))[1]
    assert_close(new.params["linear"]["kernel"][...], expected)


def test_vmap_makes_an_ensemble() -> None:
    @nnx.split_rngs(splits=4)
    @nnx.vmap
    def make(rngs: nnx.Rngs) -> nnx.Linear:
        return nnx.Linear(3, 2, rngs=rngs)

    ensemble = make(nnx.Rngs(0))
    kernels = read(ensemble.kernel)
    assert kernels.shape == (4, 3, 2)
    assert len({kernel.tobytes() for kernel in kernels}) == 4
    same = nnx.vmap(lambda model, x: model(x), in_axes=(0, None))(ensemble, jnp.asarray(X))
    assert_close(same, np.einsum("bi,mij->mbj", X, kernels))
    each = nnx.vmap(lambda model, x: model(x), in_axes=(0, 1), out_axes=1)(ensemble, jnp.asarray(draw(6, 4, 3)))
    assert_close(each, np.einsum("bmi,mij->bmj", draw(6, 4, 3), kernels))


def test_vmap_with_state_axes() -> None:
    model = make_tower()
    axes = nnx.StateAxes({nnx.Param: None, nnx.BatchStat: None})
    seen = nnx.vmap(lambda model, x: model.linear(x), in_axes=(axes, 0))(model, jnp.asarray(X))
    assert_close(seen, X @ read(model.linear.kernel) + read(model.linear.bias))


@pytest.mark.parametrize(("graph", "updates"), [(True, True), (False, False), (True, False)])
def test_transformations_of_graphs_and_of_trees(graph: bool, updates: bool) -> None:
    options = {"graph": graph, "graph_updates": updates}
    model, x = nnx.Linear(3, 2, rngs=nnx.Rngs(0)), jnp.asarray(X)
    kernel = read(model.kernel)
    loss, by_kernel, by_bias = differentiate(kernel, np.zeros(2))
    value, gradient = nnx.value_and_grad(compute_loss, **options)(model)
    assert_close(value, loss)
    for found in (gradient, nnx.grad(nnx.remat(compute_loss, **options), **options)(model)):
        leaves = jax.tree.leaves(found)
        assert_close(leaves[0], by_bias)
        assert_close(leaves[1], by_kernel)
    for run in (
        nnx.jit(lambda model, x: model(x), **options),
        nnx.vmap(lambda model, x: model(x), in_axes=(None, 0), **options),
        lambda model, x: nnx.cond(True, lambda m, x: m(x), lambda m, x: 0 * m(x), model, x, **options),
        lambda model, x: nnx.merge(*nnx.split(model, graph=graph))(x),
        lambda model, x: nnx.clone(model, graph=graph)(x),
    ):
        assert_close(run(model, x), X @ kernel)
    total, _ = nnx.scan(
        lambda total, x: (total + x, total), in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 1), **options
    )(jnp.zeros(3), x)
    assert_close(total, X.astype(np.float64).sum(0))
    nnx.jit(lambda model: setattr(model, "new", nnx.Param(jnp.ones(2))), **options)(model)
    assert hasattr(model, "new") == updates
    abstract = nnx.eval_shape(lambda: nnx.Linear(3, 2, rngs=nnx.Rngs(0)), **options)
    assert abstract.kernel.get_value() == jax.ShapeDtypeStruct((3, 2), jnp.float32)


def test_graphs_may_share_a_layer_and_trees_may_not() -> None:
    linear = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    pair = nnx.List([linear, linear])
    assert [path for path, _ in nnx.iter_modules(pair)] == [(0,), ()]
    assert len(jax.tree.leaves(nnx.state(pair))) == 2
    for function in (nnx.iter_modules, nnx.split, nnx.state):
        with pytest.raises(ValueError, match="Duplicate"):
            list(function(pair, graph=False))


def test_scan_over_layers() -> None:
    @nnx.split_rngs(splits=5)
    @nnx.vmap
    def make(rngs: nnx.Rngs) -> nnx.Linear:
        return nnx.Linear(3, 3, rngs=rngs)

    stack = make(nnx.Rngs(0))

    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    def forward(layer: Any, x: Any) -> Any:
        return jnp.tanh(layer(x))

    expected = X.astype(np.float64)
    for kernel in read(stack.kernel):
        expected = np.tanh(expected @ kernel)
    assert_close(forward(stack, jnp.asarray(X)), expected)
    gradient = nnx.grad(lambda stack: nnx.remat(forward)(stack, jnp.asarray(X)).sum())(stack)
    plain = nnx.grad(lambda stack: forward(stack, jnp.asarray(X)).sum())(stack)
    assert_close(read(gradient["kernel"]), read(plain["kernel"]))
    shift = np.zeros((5, 3, 3))
    shift[2, 0, 1] = 1e-6

    def run(kernels: Any) -> Any:
        x = X.astype(np.float64)
        for kernel in kernels:
            x = np.tanh(x @ kernel)
        return x.sum()

    slope = (run(read(stack.kernel) + shift) - run(read(stack.kernel) - shift)) / 2e-6
    assert_close(read(gradient["kernel"])[2, 0, 1], slope, 1e-5)


def test_scan_collects_outputs() -> None:
    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
    def add(total: Any, x: Any) -> Any:
        return total + x, total * x

    total, products = add(jnp.zeros(3), jnp.asarray(X))
    sums = np.cumsum(X.astype(np.float64), 0)
    assert_close(total, sums[-1])
    assert_close(products, np.concatenate([np.zeros((1, 3)), sums[:-1]]) * X)


def test_remat_has_the_same_gradient() -> None:
    model = make_tower()
    _, kernel, _ = differentiate(read(model.linear.kernel), read(model.linear.bias))
    gradient = nnx.grad(lambda model: nnx.remat(compute_loss)(model, X, Y))(model)
    assert_close(read(gradient["linear"]["kernel"]), kernel)


def test_cond_takes_one_branch() -> None:
    model = make_tower()
    for flag, calls in ((True, 1), (False, 1)):
        y = nnx.cond(flag, lambda model, x: model(x), lambda model, x: jnp.zeros((6, 2)), model, jnp.asarray(X))
        expected = X @ read(model.linear.kernel) + read(model.linear.bias) if flag else np.zeros((6, 2))
        assert_close(y, expected)
        assert int(read(model.calls)) == calls


def test_cached_partial() -> None:
    model = make_tower()

    @nnx.jit
    def forward(model: Any, x: Any) -> Any:
        return model(x)

    cached = nnx.cached_partial(forward, model)
    for count in (1, 2):
        assert_close(cached(jnp.asarray(X)), X @ read(model.linear.kernel) + read(model.linear.bias))
        assert int(read(model.calls)) == count


def test_average_and_welford() -> None:
    average, welford = nnx.metrics.Average(), nnx.metrics.Welford()
    values = [draw(5), draw(5, seed=1), draw(5, seed=2)]
    for batch in values:
        average.update(values=jnp.asarray(batch))
        welford.update(values=jnp.asarray(batch))
    wide = np.concatenate(values).astype(np.float64)
    assert_close(average.compute(), wide.mean())
    statistics = welford.compute()
    assert_close(statistics.mean, wide.mean())
    assert_close(statistics.standard_deviation, wide.std())
    assert_close(statistics.standard_error_of_mean, wide.std() / np.sqrt(15))
    average.reset()
    average.update(values=jnp.asarray([2.0, 4.0]))
    assert_close(average.compute(), 3.0)


def test_accuracy() -> None:
    accuracy = nnx.metrics.Accuracy()
    logits = np.array([[3.0, 1, 2], [0, 1, 2], [5, 4, 3]], np.float32)
    accuracy.update(logits=jnp.asarray(logits), labels=jnp.array([0, 1, 0]))
    accuracy.update(logits=jnp.asarray(logits), labels=jnp.array([0, 2, 0]))
    assert_close(accuracy.compute(), 5 / 6)


def test_multi_metric() -> None:
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"), accuracy=nnx.metrics.Accuracy())
    logits = jnp.asarray([[1.0, 2.0], [3.0, 0.0]])
    for loss in (1.0, 2.0):
        metrics.update(loss=jnp.asarray(loss), logits=logits, labels=jnp.array([1, 1]))
    computed = metrics.compute()
    assert set(computed) == {"loss", "accuracy"}
    assert_close(computed["loss"], 1.5)
    assert_close(computed["accuracy"], 0.5)
    metrics.reset()
    metrics.update(loss=jnp.asarray(4.0), logits=logits, labels=jnp.array([1, 0]))
    assert_close(metrics.compute()["accuracy"], 1.0)
    assert_close(metrics.compute()["loss"], 4.0)
    assert isinstance(metrics.loss, nnx.Metric)


@pytest.mark.parametrize("name", ["lecun_normal", "he_uniform", "xavier_uniform", "normal", "orthogonal", "uniform"])
def test_initializers_are_those_of_jax(name: str) -> None:
    seen, wanted = (
        getattr(place, name)()(jax.random.key(0), (6, 4)) for place in (nnx.initializers, jax.nn.initializers)
    )
    assert_close(seen, wanted, 0)
    for make, value in ((nnx.initializers.zeros_init, 0.0), (nnx.initializers.ones_init, 1.0)):
        made = make()(jax.random.key(0), (2,), jnp.bfloat16)
        assert made.dtype == jnp.bfloat16
        assert_close(made, np.full(2, value), 0)
