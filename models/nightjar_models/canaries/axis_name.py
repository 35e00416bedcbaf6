"""An axis name that `jax.lax.pbroadcast` splits into letters: "i" is an axis, "data" is four that are not bound.

Seen with jax 0.10.2. `("data",)` works. Traced only, since a CPU has no such collective.
"""

from __future__ import annotations

from typing import Any


def look() -> str | None:
    """The error; None if the name is taken literally."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, PartitionSpec

    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    rows = PartitionSpec("data")  # type: ignore[no-untyped-call]
    pbroadcast: Any = jax.lax.pbroadcast
    send = jax.shard_map(lambda x: pbroadcast(x, "data", 0), mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
    try:
        jax.jit(send).trace(jax.ShapeDtypeStruct((4,), np.float32))  # type: ignore[no-untyped-call]
    except NameError as error:
        return str(error)
    return None
