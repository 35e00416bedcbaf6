"""CuPy cell: arrays pass between JAX and CuPy on a GPU without a copy, by DLPack and by `__cuda_array_interface__`.

Checked by address, as in the DLPack cell. Without a GPU the answer is "cannot tell", after the import has been tried.
"""

from __future__ import annotations

from nightjar_models.ecosystem.cell import CannotTellError, Check, Finding, time_calls
from nightjar_models.ecosystem.dlpack import check_copies

TYPES = ("float16", "float32", "complex64", "int8", "int16", "int32", "uint8", "uint32")
SHAPE = (512, 1024)


def run() -> Finding:
    """Runs the cell."""
    import cupy
    import jax
    import jax.numpy as jnp
    import numpy as np

    if jax.default_backend() != "gpu":
        raise CannotTellError("it imports, but its arrays need an NVIDIA GPU, found CPU")
    copied: dict[str, list[str]] = {"from cupy": [], "to cupy": [], "through cuda_array_interface": []}
    wrong: list[str] = []
    counting = np.arange(SHAPE[0] * SHAPE[1]).reshape(SHAPE) % 100
    for name in TYPES:
        given = cupy.asarray(counting.astype(name))
        array = jax.dlpack.from_dlpack(given)
        back = cupy.from_dlpack(array)
        seen = cupy.asarray(array)  # by __cuda_array_interface__
        told = array.__cuda_array_interface__
        copied["from cupy"] += [name] * (array.unsafe_buffer_pointer() != given.data.ptr)
        copied["to cupy"] += [name] * (back.data.ptr != array.unsafe_buffer_pointer())
        copied["through cuda_array_interface"] += [name] * (seen.data.ptr != array.unsafe_buffer_pointer())
        same = told["shape"] == SHAPE and told["typestr"] == np.dtype(name).str and told["data"][0] == given.data.ptr
        arrays = (np.asarray(array), cupy.asnumpy(back), cupy.asnumpy(seen), np.asarray(jnp.asarray(given)))
        same = same and all(each.dtype == name and np.array_equal(each, counting) for each in arrays)
        wrong += [name] * (not same)
    angles = jnp.linspace(0.0, 1.0, SHAPE[1])
    sines = jax.dlpack.from_dlpack(cupy.sin(cupy.from_dlpack(angles)))
    big = jnp.ones((4096, 4096))
    samples = time_calls(
        lambda: jax.dlpack.from_dlpack(cupy.from_dlpack(big)), items=1, unit="round trips/s", calls=200
    )
    return Finding(
        checks=[
            *check_copies(copied, wrong),
            Check(
                name="sine_difference",
                value=float(np.abs(np.asarray(sines) - np.sin(np.asarray(angles, np.float64))).max()),
                expected=0.0,
                tolerance=1e-6,
                why="CuPy's sine of an array of JAX, against NumPy's",
            ),
        ],
        samples=samples,
    )
