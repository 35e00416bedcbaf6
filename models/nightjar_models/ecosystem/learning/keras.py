"""Keras cell: on the JAX backend, a model learns the least-squares solution, and a convolution is the textbook's."""

from __future__ import annotations

import os

from nightjar_models.ecosystem.cell import Check, Finding, time_calls


def run() -> Finding:
    """Runs the cell."""
    os.environ["KERAS_BACKEND"] = "jax"
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(512, 3)).astype(np.float32)
    y = (x @ np.array([1.0, -2.0, 0.5]) + 0.7 + rng.normal(size=512)).astype(np.float32)
    exact, *_ = np.linalg.lstsq(np.c_[x, np.ones(512)], y, rcond=None)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse")
    samples = time_calls(
        lambda: model.fit(x, y, batch_size=512, epochs=25, verbose=0).history["loss"][-1],
        items=25,
        unit="train steps/s",
        calls=12,
    )
    weights, bias = model.get_weights()

    image, kernel = rng.normal(size=(6, 6)).astype(np.float32), rng.normal(size=(3, 3)).astype(np.float32)
    convolved = keras.ops.conv(image[None, :, :, None], kernel[:, :, None, None], padding="valid")
    direct = [[(image[i : i + 3, j : j + 3] * kernel).sum() for j in range(4)] for i in range(4)]
    wide = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization()])
    return Finding(
        checks=[
            Check(
                name="backend_is_jax",
                value=float(keras.backend.backend() == "jax"),
                expected=1.0,
                tolerance=0,
                why="KERAS_BACKEND=jax",
            ),
            Check(
                name="least_squares_error",
                value=float(np.abs(np.r_[weights[:, 0], bias] - exact).max()),
                expected=0.0,
                tolerance=5e-3,
                why="the solution of numpy.linalg.lstsq",
            ),
            Check(
                name="convolution_error",
                value=float(np.abs(np.asarray(convolved)[0, :, :, 0] - np.array(direct)).max()),
                expected=0.0,
                tolerance=1e-5,
                why="the sum of products, in NumPy",
            ),
            Check(
                name="parameters",
                value=float(wide.count_params()),
                expected=4 * (3 * 9 + 1) + 4 * 4,
                tolerance=0,
                why="four filters of 3 x 9 weights and a bias; four numbers a channel",
            ),
        ],
        samples=samples,
    )
