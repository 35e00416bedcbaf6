"""Ten more planted inefficiencies, as users of JAX write them in training, decoding and data loops."""

import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import numpy as np

from tests.bench.advice.programs import KEY, Planted, Steps, repeat

jax: Any = import_module("jax")  # many of its functions have no types
jnp: Any = import_module("jax.numpy")


def plant_reading() -> Planted:
    """Batches from a storage that takes 6 ms: waited for between the steps, beside read during the step before."""
    batch = np.random.default_rng(0).normal(size=(2048, 64)).astype(np.float32)
    weight = jax.random.normal(KEY, (64, 64)) / 8

    step = jax.jit(lambda x: jax.lax.fori_loop(0, 40, lambda _, y: jnp.tanh(y @ weight), x).mean())

    def read() -> Any:
        time.sleep(0.006)
        return batch.copy()

    def in_turns(steps: int) -> None:
        for _ in range(steps):
            float(step(read()))

    def ahead(steps: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            following = pool.submit(read)
            for _ in range(steps):
                ready, following = following.result(), pool.submit(read)
                float(step(ready))

    return Planted("batches read between steps", "host", in_turns, ahead)


def plant_static_argument() -> Planted:
    weight, x = jax.random.normal(KEY, (256, 256)) / 16, jax.random.normal(KEY, (512, 256))

    def step(weight: Any, rate: Any) -> Any:
        return weight - rate * jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(weight)

    again, once = jax.jit(step, static_argnums=1), jax.jit(step)
    rate = [1.0]

    def run(compiled: Any) -> Any:
        rate[0] *= 0.999
        return compiled(weight, rate[0])

    name = "a rate that is a static argument"
    return Planted(name, "recompile", repeat(lambda: run(again)), repeat(lambda: run(once)), steps=8)


def plant_cache() -> Planted:
    """A decoder that writes a key into its cache, which is not donated."""
    cache, query = jax.random.normal(KEY, (4096, 512)), jax.random.normal(KEY, (512,))

    def step(cache: Any, query: Any, position: Any) -> Any:
        cache = jax.lax.dynamic_update_slice(cache, query[None], (position, 0))
        return cache, jax.nn.softmax(cache @ query) @ cache

    def decode(compiled: Any) -> Steps:
        held = [jax.block_until_ready(jnp.copy(cache))]

        def run(steps: int) -> None:
            for position in range(steps):
                held[0], _ = jax.block_until_ready(compiled(held[0], query, position))

        return run

    donated = jax.jit(step, donate_argnums=0)
    return Planted("a cache that is not donated", "donate", decode(jax.jit(step)), decode(donated), steps=60)


def plant_update() -> Planted:
    """An optimizer outside of jit: momentum, for each leaf of the parameters."""
    weights = [jax.random.normal(jax.random.fold_in(KEY, n), (512, 512)) / 20 for n in range(6)]
    x = jax.random.normal(KEY, (64, 512))

    def loss(weights: Any) -> Any:
        y = x
        for weight in weights:
            y = jnp.tanh(y @ weight)
        return (y**2).mean()

    gradient = jax.jit(jax.grad(loss))

    def update(weights: Any, momentum: Any, gradients: Any) -> Any:
        momentum = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, momentum, gradients)
        return jax.tree.map(lambda w, m: w * (1 - 1e-4) - 0.01 * m, weights, momentum), momentum

    def train(update: Any) -> Steps:
        def run(steps: int) -> None:
            held, momentum = weights, weights
            for _ in range(steps):
                held, momentum = update(held, momentum, gradient(held))
            jax.block_until_ready(held)

        return run

    return Planted("an optimizer outside of jit", "eager", train(update), train(jax.jit(update)))


def plant_single() -> Planted:
    """Examples that are dispatched one at a time, beside one vmap."""
    examples, weight = jax.random.normal(KEY, (200, 64)), jax.random.normal(KEY, (64, 64)) / 8

    def score(x: Any) -> Any:
        return jnp.tanh(jnp.tanh(x @ weight) @ weight).sum()

    alone, batched = jax.jit(score), jax.jit(jax.vmap(score))
    rows = list(np.asarray(examples))

    def worse() -> Any:
        return [float(alone(row)) for row in rows]

    return Planted("examples one at a time", "host", repeat(worse), repeat(lambda: batched(examples)), steps=10)


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


EVERYDAY = (
    plant_reading,
    plant_static_argument,
    plant_cache,
    plant_update,
    plant_single,
    plant_one_hot,
    plant_sort,
    plant_loss,
    plant_map,
    plant_distances,
)
