"""One small network, and versions of it that differ by a line each; `KINDS` says what each difference is."""

import os
import signal
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def make_arguments() -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(0), 3)
    return (
        jax.random.normal(keys[0], (8, 16)),
        jax.random.normal(keys[1], (16, 16)) / 4,
        jax.random.normal(keys[2], (3, 16, 16)) / 4,
        jnp.ones(16),
    )


def norm(x: Any, scale: Any, epsilon: float = 1e-6) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + epsilon) * scale  # line: norm


def attend(x: Any, shift: int = 0, dtype: Any = jnp.float32, factor: float = 0.25) -> Any:
    logits = x @ x.T * factor  # line: scale
    mask = jnp.tril(jnp.ones((8, 8), bool), shift)  # line: mask
    weights = jax.nn.softmax(jnp.where(mask, logits, -1e9).astype(dtype))  # line: softmax
    return weights.astype(jnp.float32) @ x


def layers(x: Any, stack: Any, kick: float = 0.0) -> Any:
    def body(carry: Any, given: Any) -> tuple[Any, None]:
        weight, turn = given
        return jnp.tanh(carry @ weight) + jnp.where(turn == 1, kick, 0.0), None  # line: scan

    return jax.lax.scan(body, x, (stack, jnp.arange(3)))[0]


def drop(x: Any, again: bool = False) -> Any:
    first, second = jax.random.split(jax.random.key(7))
    kept = jax.random.bernoulli(first, 0.9, x.shape)
    x = jnp.where(kept, x / 0.9, 0)
    kept = jax.random.bernoulli(first if again else second, 0.9, x.shape)  # line: dropout
    return jnp.where(kept, x / 0.9, 0)


def base(
    x: Any, weight: Any, stack: Any, gain: Any, epsilon: float = 1e-6, kick: float = 0, again: bool = False, **more: Any
) -> Any:
    h = attend(norm(x, gain, epsilon), **more) @ weight
    return jnp.sum(drop(layers(h, stack, kick), again) ** 2)


epsilon = partial(base, epsilon=1e-5)
mask = partial(base, shift=1)
scaled = partial(base, factor=0.3)
softmax = partial(base, dtype=jnp.bfloat16)
scan = partial(base, kick=0.01)
dropout = partial(base, again=True)


def order(x: Any, weight: Any, stack: Any, scale: Any) -> Any:
    h = attend(norm(x, scale))
    parts = h[:, :8] @ weight[:8] + h[:, 8:] @ weight[8:]  # line: order
    return jnp.sum(drop(layers(parts, stack)) ** 2)


def product(x: Any, weight: Any, stack: Any, scale: Any) -> Any:
    half = [part.astype(jnp.bfloat16) for part in (attend(norm(x, scale)), weight)]  # line: product
    return jnp.sum(drop(layers((half[0] @ half[1]).astype(jnp.float32), stack)) ** 2)


def given(x: Any, weight: Any, stack: Any, scale: Any) -> Any:
    return jnp.sum(drop(layers(attend(norm(x, scale)) @ weight, stack * 1.1)) ** 2)  # line: given


def outside(x: Any, *_: Any, mode: str = "promise_in_bounds") -> Any:
    rows = x.at[jnp.array([1, 8])].get(mode=mode)  # line: outside
    return jnp.sum(rows**2)


def filled(x: Any, *_: Any) -> Any:
    return outside(x, mode="fill")


def clipped(x: Any, *_: Any) -> Any:
    return outside(x * 0 + jnp.roll(x, 0), mode="clip")


def unrolled(x: Any, weight: Any, stack: Any, scale: Any) -> Any:
    h = attend(norm(x, scale)) @ weight
    for turn in range(3):
        h = jnp.tanh(h @ stack[turn]) + jnp.where(turn == 1, 0.0, 0.0)
    return jnp.sum(drop(h) ** 2)


def random(x: Any, *_: Any) -> Any:
    number = jax.ShapeDtypeStruct((), np.float32)  # type: ignore[no-untyped-call]
    noise = jax.pure_callback(lambda: np.float32(int.from_bytes(os.urandom(3))), number)  # line: random
    return jnp.sum(x) + noise


def crashes(x: Any, *_: Any) -> Any:

    def end(value: Any) -> Any:
        if "xla_cpu_max_isa" in os.environ.get("XLA_FLAGS", ""):
            os.kill(os.getpid(), signal.SIGSEGV)
        return value

    x = jax.pure_callback(end, jax.eval_shape(jnp.tanh, x), jnp.tanh(x))  # line: crash
    return x.sum()


KINDS = {
    "epsilon": ("fault", "norm"),
    "mask": ("fault", "mask"),
    "scaled": ("fault", "scale"),
    "softmax": ("numerics", "softmax"),
    "scan": ("fault", "scan"),
    "dropout": ("fault", "dropout"),
    "given": ("fault", "given"),
    "order": ("rounding", "order"),
    "product": ("numerics", "product"),
}
