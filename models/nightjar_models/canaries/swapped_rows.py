"""Rows of a sharded product that XLA swaps, on eight virtual devices of a CPU.

A product with a weight that is split over fsdp and tensor, whose rows are split over data and fsdp: seen with jaxlib
0.10.2 to 0.12.0.1 (docs/faq.md). The workaround is `nightjar_models.parallel.sharding.keep_rows_whole`.
"""

from __future__ import annotations

import os

DEVICES = "--xla_force_host_platform_device_count=8"


def look() -> str | None:
    """Which rows of the product are wrong; None where all are right."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}"
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("data", "fsdp", "tensor"))
    rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), "tensor"))  # type: ignore[no-untyped-call]
    weight = NamedSharding(mesh, PartitionSpec("fsdp", "tensor"))  # type: ignore[no-untyped-call]
    numbers = np.arange(256.0, dtype=np.float32).reshape(16, 16)
    multiply = jax.jit(lambda x, w: x @ w.T, in_shardings=(rows, weight), out_shardings=rows)
    wrong = np.flatnonzero((np.asarray(multiply(numbers, numbers)) != numbers @ numbers.T).any(axis=1))
    if len(wrong):
        return f"rows {', '.join(map(str, wrong))} of 16 are those of others"
    return None
