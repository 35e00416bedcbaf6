"""Programs with one planted inefficiency each, and the same work without it.

Each is a function that takes the number of steps to run, and returns when all of them are done.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from tests.bench.truth.called_programs import PROGRAMS

jax: Any = import_module("jax")  # many of its functions have no types
jnp: Any = import_module("jax.numpy")

Steps = Callable[[int], None]
KEY = jax.random.key(0)


@dataclass(frozen=True, slots=True)
class Planted:
    name: str
    kind: str
    worse: Steps
    better: Steps
    steps: int = 20


def repeat(step: Callable[[], Any]) -> Steps:
    def run(steps: int) -> None:
        for _ in range(steps):
            jax.block_until_ready(step())

    return run


def plant_donation() -> Planted:
    """A step that hands a large state back, of which it changes little."""
    state, x = jax.random.normal(KEY, (4_000_000,)), jax.random.normal(KEY, (400, 400))

    def step(state: Any, x: Any) -> Any:
        return state, (x @ x).sum()

    kept, given = jax.jit(step), jax.jit(step, donate_argnums=0)
    held = [jnp.copy(state)]

    def donating() -> Any:
        held[0], loss = given(held[0], x)
        return held[0], loss

    return Planted("state not donated", "donate", repeat(lambda: kept(state, x)), repeat(donating))


def plant_eager() -> Planted:
    """A chain of elementwise operations that no jit holds together."""
    x = jax.random.normal(KEY, (2_000_000,))

    def chain(x: Any) -> Any:
        y = x * 2.0
        y = y + 1.0
        y = jnp.maximum(y, 0.0)
        y = y * x
        return y - x

    fused = jax.jit(chain)
    return Planted("elementwise chain without jit", "eager", repeat(lambda: chain(x)), repeat(lambda: fused(x)))


def plant_host() -> Planted:
    """A loop that prepares each batch while the device waits."""
    x = jax.random.normal(KEY, (500, 500))
    work = jax.jit(lambda x: (x @ x).sum())

    def late() -> Any:
        time.sleep(0.01)
        return work(x)

    return Planted("batches made between steps", "host", repeat(late), repeat(lambda: work(x)))


def plant_recompilation() -> Planted:
    """A program that sees another shape in each step, beside the same padded to one."""
    length = [1000]

    def step(x: Any) -> Any:
        return jnp.tanh(x @ x.T).sum()

    def other_step(x: Any) -> Any:
        return jnp.tanh(x @ x.T).sum()

    ragged_step, padded_step = jax.jit(step), jax.jit(other_step)
    rows = np.ones((1400, 64), np.float32)

    def ragged() -> Any:
        length[0] += 1
        return ragged_step(rows[: length[0]])

    return Planted(
        "another shape in each step", "recompile", repeat(ragged), repeat(lambda: padded_step(rows)), steps=8
    )


def plant_remat() -> Planted:
    """A network that computes its forward pass again for the backward pass."""
    weights, x = [jax.random.normal(KEY, (256, 256)) / 16 for _ in range(4)], jax.random.normal(KEY, (512, 256))

    def layer(x: Any, weight: Any) -> Any:
        return jnp.sin(jnp.exp(jnp.tanh(jnp.sin(x @ weight))))

    def make(wrap: Callable[[Any], Any]) -> Any:
        def loss(weights: Any, x: Any) -> Any:
            for weight in weights:
                x = wrap(layer)(x, weight)
            return (x**2).mean()

        return jax.jit(jax.grad(loss))

    again, kept = make(jax.checkpoint), make(lambda function: function)
    return Planted("checkpointed layers", "remat", repeat(lambda: again(weights, x)), repeat(lambda: kept(weights, x)))


def plant_double() -> Planted:
    with jax.enable_x64(True):
        double = jax.block_until_ready(jnp.asarray(np.random.default_rng(0).normal(size=(500, 500))))
        wide = jax.jit(lambda x: (x @ x) @ x)
        jax.block_until_ready(wide(double))
    single, narrow = double.astype(jnp.float32), jax.jit(lambda x: (x @ x) @ x)

    def in_double() -> Any:
        with jax.enable_x64(True):
            return wide(double)

    return Planted("float64", "double", repeat(in_double), repeat(lambda: narrow(single)))


def plant_callback() -> Planted:
    x = jax.random.normal(KEY, (300, 300))

    def note(x: Any) -> Any:
        time.sleep(0.004)
        return np.float32(0)

    def step(x: Any) -> Any:
        y = x @ x
        return y.sum() + jax.pure_callback(note, jax.ShapeDtypeStruct((), jnp.float32), y[0, 0])

    called, quiet = jax.jit(step), jax.jit(lambda x: (x @ x).sum())
    return Planted("a callback in each step", "callback", repeat(lambda: called(x)), repeat(lambda: quiet(x)))


def plant_layout() -> Planted:
    """A step that transposes its input, which could have been kept so."""
    x = jax.random.normal(KEY, (128, 96, 160))
    turn = jax.jit(lambda x: jnp.transpose(x, (2, 1, 0)) + 0)
    turned = jax.block_until_ready(turn(x))

    def worse(x: Any) -> Any:
        y = jax.lax.optimization_barrier(jnp.transpose(x, (2, 1, 0)))
        return jnp.tanh(y).sum(axis=0)

    moved, kept = jax.jit(worse), jax.jit(lambda y: jnp.tanh(y).sum(axis=0))
    return Planted("a transposition in each step", "layout", repeat(lambda: moved(x)), repeat(lambda: kept(turned)))


def plant_small_steps() -> Planted:
    """Many steps too small for their dispatch, beside one program that scans over as many."""
    x = jax.random.normal(KEY, (32, 32))
    one = jax.jit(lambda x: jnp.tanh(x @ x))

    hundred = jax.jit(lambda x: jax.lax.scan(lambda y, _: (jnp.tanh(y @ y), None), x, length=100)[0])

    def worse() -> Any:
        y = x
        for _ in range(100):
            y = one(y)
            float(y[0, 0])
        return y

    return Planted("steps that read a result each", "host", repeat(worse), repeat(lambda: hundred(x)), steps=10)


def plant_exposed() -> Planted:
    """An all-reduce of what could stay on its device."""
    devices = jax.devices()
    mesh = jax.sharding.Mesh(np.array(devices), ("x",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    x = jax.device_put(jax.random.normal(KEY, (len(devices) * 64, 20_000)), rows)

    def worse(x: Any) -> Any:
        return jax.lax.psum(jnp.tanh(x), "x")

    spec = jax.sharding.PartitionSpec("x")
    summed = jax.jit(jax.shard_map(worse, mesh=mesh, in_specs=spec, out_specs=jax.sharding.PartitionSpec()))
    local = jax.jit(jax.shard_map(jnp.tanh, mesh=mesh, in_specs=spec, out_specs=spec))
    return Planted("an all-reduce in each step", "exposed", repeat(lambda: summed(x)), repeat(lambda: local(x)))


def plant_one_hot() -> Planted:
    table = jax.random.normal(KEY, (4000, 128))
    tokens, weight = jax.random.randint(KEY, (512,), 0, 4000), jax.random.normal(KEY, (128, 512)) / 12

    def product(tokens: Any) -> Any:
        return jnp.tanh((jax.nn.one_hot(tokens, 4000) @ table) @ weight).mean()

    def lookup(tokens: Any) -> Any:
        return jnp.tanh(table[tokens] @ weight).mean()

    one_hot, indexed = jax.jit(product), jax.jit(lookup)
    return Planted("a product for a lookup", "lookup", repeat(lambda: one_hot(tokens)), repeat(lambda: indexed(tokens)))


def plant_sort() -> Planted:
    """A sampler that sorts all logits to know the forty highest."""
    weight, x = jax.random.normal(KEY, (128, 8000)) / 12, jax.random.normal(KEY, (16, 128))

    def by_sort(x: Any, key: Any) -> Any:
        logits = x @ weight
        best = jnp.argsort(-logits, axis=-1)[:, :40]
        chosen = jax.random.categorical(key, jnp.take_along_axis(logits, best, axis=-1))
        return jnp.take_along_axis(best, chosen[:, None], axis=-1)

    def by_top(x: Any, key: Any) -> Any:
        values, best = jax.lax.top_k(x @ weight, 40)
        return jnp.take_along_axis(best, jax.random.categorical(key, values)[:, None], axis=-1)

    sort, top = jax.jit(by_sort), jax.jit(by_top)
    return Planted("a sort for the highest", "sort", repeat(lambda: sort(x, KEY)), repeat(lambda: top(x, KEY)))


def plant_loss() -> Planted:
    """A loss that is computed for the log, beside the gradient that computes it too."""
    weights, x = [jax.random.normal(KEY, (300, 300)) / 17 for _ in range(3)], jax.random.normal(KEY, (512, 300))

    def loss(weights: Any, x: Any) -> Any:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return (x**2).mean()

    value, gradient, both = jax.jit(loss), jax.jit(jax.grad(loss)), jax.jit(jax.value_and_grad(loss))

    def worse() -> Any:
        return value(weights, x), gradient(weights, x)

    return Planted("a loss beside its gradient", "twice", repeat(worse), repeat(lambda: both(weights, x)))


def plant_map() -> Planted:
    """A network that a loop calls for one example after another."""
    examples, weight = jax.random.normal(KEY, (500, 256)), jax.random.normal(KEY, (256, 256)) / 16

    def score(x: Any) -> Any:
        return jnp.tanh(jnp.tanh(x @ weight) @ weight).sum()

    looped, at_once = jax.jit(lambda x: jax.lax.map(score, x)), jax.jit(jax.vmap(score))
    return Planted("a map for a vmap", "loop", repeat(lambda: looped(examples)), repeat(lambda: at_once(examples)))


def plant_distances() -> Planted:
    """Distances between points by the difference of every pair, beside one product."""
    points, others = jax.random.normal(KEY, (600, 128)), jax.random.normal(KEY, (700, 128))

    def by_difference(points: Any) -> Any:
        return ((points[:, None, :] - others[None, :, :]) ** 2).sum(axis=-1).min(axis=1)

    def by_product(points: Any) -> Any:
        squares = (points**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)
        return (squares - 2 * points @ others.T).min(axis=1)

    pairs, product = jax.jit(by_difference), jax.jit(by_product)
    return Planted(
        "differences of all pairs", "product", repeat(lambda: pairs(points)), repeat(lambda: product(points))
    )


def run_initialisation(steps: int) -> None:
    shapes = ((64, 1280), (1280, 2560), (2560, 10))
    weights = [jax.random.normal(jax.random.fold_in(KEY, n), shape) * 0.1 for n, shape in enumerate(shapes)]
    biases = [jnp.zeros(shape[1]) + 1 for shape in shapes]

    def step(x: Any) -> Any:
        for weight, bias in zip(weights, biases, strict=True):
            x = jnp.tanh(x @ weight + bias)
        return x.sum()

    compiled, x = jax.jit(step), jnp.ones((512, 64))
    repeat(lambda: compiled(x))(steps)


def make_data_parallel() -> Steps:
    """Gradients of a network on two devices, each with half of the batch."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    spec, whole = jax.sharding.PartitionSpec("x"), jax.sharding.PartitionSpec()
    x = jax.device_put(jax.random.normal(KEY, (2048, 256)), jax.sharding.NamedSharding(mesh, spec))
    weight = jax.device_put(jax.random.normal(KEY, (256, 256)), jax.sharding.NamedSharding(mesh, whole))

    def loss(weight: Any, x: Any) -> Any:
        return jnp.tanh(jnp.tanh(jnp.tanh(x @ weight) @ weight) @ weight).mean()

    step = jax.jit(jax.grad(loss))
    return repeat(lambda: step(weight, x))


def list_ordinary() -> dict[str, Steps]:
    """Programs with nothing planted, by name: they call JAX in every way but those for which there is advice."""
    found = {}
    for name, (function, argument) in PROGRAMS.items():
        if "remat" not in name and name != "callback":
            found[name] = repeat(partial(jax.jit(function), argument))
            found[name](1)
    return {**found, "initialisation": run_initialisation, "data parallel": make_data_parallel()}


PLANTS = (
    plant_donation,
    plant_eager,
    plant_host,
    plant_recompilation,
    plant_remat,
    plant_double,
    plant_callback,
    plant_layout,
    plant_small_steps,
    plant_exposed,
    plant_one_hot,
    plant_sort,
    plant_loss,
    plant_map,
    plant_distances,
)
