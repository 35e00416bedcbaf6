"""Programs whose calls go through JAX in every way: `PROGRAMS` maps a name to a function and its arguments.

Each call is in one line, and the functions are named: the lines are compared with the program's own calls.
"""

# mypy: disable-error-code="untyped-decorator"

from importlib import import_module
from typing import Any

jax: Any = import_module("jax")  # many of its functions have no types
jnp: Any = import_module("jax.numpy")
lax, linen, nnx = jax.lax, import_module("flax.linen"), import_module("flax.nnx")

SIZE = 800  # so that the wait for the next step is a small part
X = jnp.eye(SIZE) + 0.01
W = jnp.stack([X / n for n in range(2, 7)])


def multiply(carry: Any, weight: Any) -> Any:
    return jnp.tanh(carry @ weight)


def run_layers(layer: Any, first: Any, weights: Any) -> Any:
    return lax.scan(layer, first, weights)[0]


def layer(carry: Any, weight: Any) -> Any:
    return multiply(carry, weight), None


def scan(weights: Any) -> Any:
    return lax.scan(layer, weights[0], weights)[0]


def scan_below(weights: Any) -> Any:
    return run_layers(layer, weights[0], weights)


def nested_scan(weights: Any) -> Any:
    def outer(carry: Any, _: Any) -> Any:
        return run_layers(layer, carry, weights), None

    return run_layers(outer, weights[0], jnp.arange(3))


def unrolled_scan(weights: Any) -> Any:
    return lax.scan(layer, weights[0], weights, unroll=5)[0]


def one_round(weights: Any) -> Any:
    return run_layers(layer, weights[0], weights[:1])


def grad_of_scan(weights: Any) -> Any:
    def loss(weights: Any) -> Any:
        return scan_below(weights).sum()

    return jax.grad(loss)(weights)


def while_loop(x: Any) -> Any:
    def more(state: Any) -> Any:
        return state[0] < 5

    def body(state: Any) -> Any:
        return state[0] + 1, multiply(state[1], x)

    return lax.while_loop(more, body, (0, x))[1]


def fori_loop(x: Any) -> Any:
    def body(_: Any, carry: Any) -> Any:
        return multiply(carry, x)

    return lax.fori_loop(0, 5, body, x)


def cond(x: Any) -> Any:
    def larger(x: Any) -> Any:
        return multiply(x, x)

    return lax.cond(x[0, 0] > 0, larger, jnp.cos, x)


def remat(x: Any) -> Any:
    @jax.checkpoint
    def block(x: Any) -> Any:
        return multiply(jnp.sin(x), x)

    def loss(x: Any) -> Any:
        return block(block(x)).sum()

    return jax.grad(loss)(x)


def remat_in_scan(weights: Any) -> Any:
    @jax.checkpoint
    def block(carry: Any, weight: Any) -> Any:
        return multiply(jnp.sin(carry), weight)

    def blocks(carry: Any, weight: Any) -> Any:
        return block(carry, weight), None

    def loss(weights: Any) -> Any:
        return run_layers(blocks, weights[0], weights).sum()

    return jax.grad(loss)(weights)


@jax.jit
def jitted(x: Any) -> Any:
    return jnp.sin(x @ x)


def nested_jit(x: Any) -> Any:
    def first(x: Any) -> Any:
        return jitted(x)

    def second(x: Any) -> Any:
        return jitted(x + 1)

    return first(x) + second(x)


def recursion(weights: Any) -> Any:
    def again(x: Any, number: int) -> Any:
        return jnp.sin(x @ x) if number == 0 else jnp.cos(again(x, number - 1))

    def deep(carry: Any, weight: Any) -> Any:
        return again(carry @ weight, 3), None

    return run_layers(deep, weights[0], weights)


def vmap(weights: Any) -> Any:
    def single(x: Any) -> Any:
        return run_layers(layer, x, weights)

    return jax.vmap(single)(weights)


def mapped(weights: Any) -> Any:
    def square(weight: Any) -> Any:
        return multiply(weight, weight)

    return lax.map(square, weights)


@jax.custom_vjp
def with_rule(x: Any) -> Any:
    return jnp.sin(x) @ x


def forward(x: Any) -> Any:
    return with_rule(x), x


def backward(x: Any, gradient: Any) -> Any:
    return (jnp.cos(x) @ gradient,)


with_rule.defvjp(forward, backward)


def custom_vjp(x: Any) -> Any:
    def loss(x: Any) -> Any:
        return with_rule(x).sum()

    return jax.grad(loss)(x)


def custom_vjp_in_scan(weights: Any) -> Any:
    def ruled(carry: Any, weight: Any) -> Any:
        return with_rule(carry @ weight), None

    def loss(weights: Any) -> Any:
        return run_layers(ruled, weights[0], weights).sum()

    return jax.grad(loss)(weights)


def activations(weights: Any) -> Any:
    def active(carry: Any, weight: Any) -> Any:
        return jax.nn.silu(jax.nn.relu(carry @ weight)) + jax.nn.softmax(carry), None

    def loss(weights: Any) -> Any:
        return run_layers(active, weights[0], weights).sum()

    return jax.value_and_grad(loss)(weights)


def callback(x: Any) -> Any:
    def same(x: Any) -> Any:
        return x

    return jax.pure_callback(same, jax.ShapeDtypeStruct(x.shape, x.dtype), x @ x)


class LinenNet(linen.Module):  # type: ignore[name-defined, misc]
    @linen.compact
    def __call__(self, x: Any) -> Any:
        hidden = linen.relu(linen.Dense(SIZE)(x))
        return linen.Dense(SIZE)(hidden)


LINEN = LinenNet()
VARIABLES = LINEN.init(jax.random.key(0), X)


def linen_grad(variables: Any) -> Any:
    def loss(variables: Any) -> Any:
        return LINEN.apply(variables, X).sum()

    return jax.grad(loss)(variables)


class NnxNet(nnx.Module):  # type: ignore[name-defined, misc]
    def __init__(self) -> None:
        self.first, self.second = nnx.Linear(SIZE, SIZE, rngs=nnx.Rngs(0)), nnx.Linear(SIZE, SIZE, rngs=nnx.Rngs(1))

    def __call__(self, x: Any) -> Any:
        hidden = nnx.relu(self.first(x))
        return self.second(hidden)


GRAPH, STATE = nnx.split(NnxNet())


def nnx_grad(state: Any) -> Any:
    def loss(state: Any) -> Any:
        return nnx.merge(GRAPH, state)(X).sum()

    return jax.grad(loss)(state)


ON_X = (while_loop, fori_loop, cond, remat, nested_jit, custom_vjp, callback)
ON_W = (scan, scan_below, nested_scan, unrolled_scan, one_round, grad_of_scan, remat_in_scan, recursion, vmap, mapped)
PROGRAMS = {
    **{function.__name__: (function, X) for function in ON_X},
    **{function.__name__: (function, W) for function in (*ON_W, custom_vjp_in_scan, activations)},
    "linen": (linen_grad, VARIABLES),
    "nnx": (nnx_grad, STATE),
}
