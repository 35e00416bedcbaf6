"""Memory of `jax.lax.ragged_dot` and its gradient, compiled for one H100 that is not there.

64 experts of 1,024 by 2,048 and 32,768 tokens have 0.56 GiB of arguments. Seen: 24 GiB of temporaries with jax 0.10.2,
since each expert multiplies all tokens. Users report 15 GiB by 0.8 and 54 by 0.9 (marin-community/marin#5394).
"""

from __future__ import annotations

from typing import Any

EXPERTS, WIDTH, HIDDEN, TOKENS = 64, 1024, 2048, 32_768
EXPECTED_GIB = 4.0  # sorted tokens, hidden activations and gradients take less than 2


def look() -> str | None:
    """The temporaries of forward and backward pass; None where they are as small as they should be."""
    from nightjar_models.aot.topology import find_devices, prepare_process
    from nightjar_models.hardware.target import parse_cluster

    prepare_process()
    import jax
    import jax.numpy as jnp

    device = jax.sharding.SingleDeviceSharding(find_devices(parse_cluster("h100x1"))[0])

    def loss(x: Any, w_in: Any, w_out: Any, counts: Any) -> Any:
        hidden = jax.nn.silu(jax.lax.ragged_dot(x, w_in, counts))
        return jax.lax.ragged_dot(hidden, w_out, counts).astype(jnp.float32).mean()

    shapes: list[tuple[tuple[int, ...], Any]] = [
        ((TOKENS, WIDTH), jnp.bfloat16),
        ((EXPERTS, WIDTH, HIDDEN), jnp.bfloat16),
        ((EXPERTS, HIDDEN, WIDTH), jnp.bfloat16),
        ((EXPERTS,), jnp.int32),
    ]
    arguments = [jax.ShapeDtypeStruct(shape, dtype, sharding=device) for shape, dtype in shapes]  # type: ignore[no-untyped-call]
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*arguments).compile()
    memory = compiled.memory_analysis()
    assert memory is not None, "every backend that compiles ahead of time says it"
    gib = memory.temp_size_in_bytes / 2**30
    if gib > EXPECTED_GIB:
        return f"{gib:.1f} GiB of temporaries, expected at most {EXPECTED_GIB:g}"
    return None
