"""DLPack cell of TensorFlow: tensors and batches of tf.data pass to JAX and back without a copy.

TensorFlow does not tell the address of a tensor. Two arrays that JAX makes of one tensor lie at one address only where
neither is a copy; so does the array that comes back from a tensor made of an array.
"""

from __future__ import annotations

import os

from nightjar_models.ecosystem.cell import Check, Finding, time_calls
from nightjar_models.ecosystem.dlpack import check_copies

TYPES = ("float32", "float16", "bfloat16", "int32", "int16", "int8", "uint8", "bool")
ROWS, COLUMNS, BATCH = 512, 1024, 64


def run() -> Finding:
    """Runs the cell."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # it describes the processor at length

    import jax
    import jax.numpy as jnp
    import tensorflow as tf

    def to_jax(tensor):
        return jax.dlpack.from_dlpack(tensor)

    def to_tensorflow(array):
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())

    def is_shared(first, second):
        return bool(first.unsafe_buffer_pointer() == second.unsafe_buffer_pointer())

    counting = jnp.arange(ROWS * COLUMNS).reshape(ROWS, COLUMNS) % 2
    copied: dict[str, list[str]] = {"to jax": [], "to tensorflow": []}
    wrong: list[str] = []
    for name in TYPES:
        tensor = tf.cast(tf.reshape(tf.range(ROWS * COLUMNS), (ROWS, COLUMNS)) % 2, getattr(tf, name))
        array, again = to_jax(tensor), to_jax(tensor)
        back = to_tensorflow(array)
        copied["to jax"] += [name] * (not is_shared(array, again))
        copied["to tensorflow"] += [name] * (not is_shared(array, to_jax(back)))
        names = (str(array.dtype), back.dtype.name) == (name, name)
        wrong += [name] * (not (names and bool((array.astype(jnp.int32) == counting).all())))
    numbers = tf.data.Dataset.range(ROWS).map(lambda number: tf.cast(number, tf.float32)).batch(BATCH)
    batches = [(to_jax(batch), to_jax(batch)) for batch in numbers]
    copied["to jax"] += ["a batch of tf.data"] * (not all(is_shared(*pair) for pair in batches))
    total = sum(float(jax.jit(jnp.sum)(batch)) for batch, _ in batches)
    big = tf.ones((4096, 4096))
    samples = time_calls(lambda: to_jax(to_tensorflow(to_jax(big))), items=1, unit="round trips/s", calls=200)
    return Finding(
        checks=[
            *check_copies(copied, wrong),
            Check(
                name="sum_of_batches",
                value=total,
                expected=ROWS * (ROWS - 1) / 2,
                tolerance=0,
                why=f"JAX adds up what tf.data counts from 0 to {ROWS - 1}, in batches of {BATCH}",
            ),
        ],
        samples=samples,
    )
