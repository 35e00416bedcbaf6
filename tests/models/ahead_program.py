"""The program whose optimized HLO `data/ahead_scan.hlo.pb.xz` holds: six layers in a loop, weights split over fsdp.

`python -m tests.models.ahead_program` compiles it for eight H100 anew; that needs the packages of docker/locks/aot.txt.
"""

from __future__ import annotations

import lzma
import tempfile
from pathlib import Path

from nightjar_models.ahead.target import parse_cluster
from nightjar_models.ahead.topology import find_devices, prepare_process

RECORDED = Path(__file__).parent / "data" / "ahead_scan.hlo.pb.xz"
LAYERS, WIDTH, ROWS, DEVICES = 6, 1024, 512, 8


def compile_program() -> bytes:
    """The HLO protobuf of the program."""
    prepare_process()
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(find_devices(parse_cluster(f"h100x{DEVICES}"))), ("fsdp",))

    def shape(*sizes: int, over: tuple[str | None, ...]) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, PartitionSpec(*over))  # type: ignore[no-untyped-call]
        return jax.ShapeDtypeStruct(sizes, jnp.bfloat16, sharding=sharding)  # type: ignore[no-untyped-call]

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        def layer(h: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
            return jax.nn.gelu(h @ weight), None

        return jax.lax.scan(layer, x, weights)[0].astype(jnp.float32).sum()

    arguments = (shape(LAYERS, WIDTH, WIDTH, over=(None, "fsdp")), shape(ROWS, WIDTH, over=("fsdp",)))
    with tempfile.TemporaryDirectory() as folder:
        jax.jit(jax.grad(loss)).lower(*arguments).compile(
            compiler_options={
                "xla_gpu_enable_triton_gemm": False,
                "xla_dump_to": folder,
                "xla_dump_hlo_as_proto": True,
                "xla_dump_hlo_module_re": ".*loss.*",
            }
        )
        (found,) = Path(folder).glob("*after_optimizations.hlo.pb")
        return found.read_bytes()


if __name__ == "__main__":
    RECORDED.write_bytes(lzma.compress(compile_program()))
