"""The programs whose optimized HLO `data/ahead_*.hlo.pb.xz` hold, compiled for eight H100 that are not there.

`scan`: six layers in a loop, weights split over fsdp. `ring`: the collective matrix products of a layer split over
tensor, and a collective broadcast. `fp8`: products in FP8 and their gradients, one of a plain layer, one of experts.

`python -m tests.models.aot.program [NAME...]` compiles them anew; that needs the packages of docker/locks/aot.txt.
"""

import lzma
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nightjar_models.aot.topology import find_devices, prepare_process
from nightjar_models.hardware.target import parse_cluster
from tests.places import RECORDED

LAYERS, WIDTH, ROWS, DEVICES = 6, 1024, 512, 8
EXPERTS = 4


def recorded(name: str) -> Path:
    return RECORDED / f"ahead_{name}.hlo.pb.xz"


def compile_program(name: str) -> bytes:
    prepare_process()
    import jax

    function, arguments = PROGRAMS[name]()
    with tempfile.TemporaryDirectory() as folder:
        jax.jit(function).lower(*arguments).compile(
            compiler_options={
                "xla_gpu_enable_triton_gemm": False,
                "xla_dump_to": folder,
                "xla_dump_hlo_as_proto": True,
                "xla_dump_hlo_module_re": ".*loss.*",
            }
        )
        (found,) = Path(folder).glob("*after_optimizations.hlo.pb")
        return found.read_bytes()


def shapes(axis: str) -> tuple[Any, Callable[..., Any]]:
    """A mesh of eight H100 along one axis, and what makes a bfloat16 argument on it: sizes, and the axis of each."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(find_devices(parse_cluster(f"h100x{DEVICES}"))), (axis,))

    def shape(*sizes: int, over: tuple[str | None, ...]) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(mesh, PartitionSpec(*over))  # type: ignore[no-untyped-call]
        return jax.ShapeDtypeStruct(sizes, jnp.bfloat16, sharding=sharding)  # type: ignore[no-untyped-call]

    return mesh, shape


def make_scan() -> tuple[Any, tuple[Any, ...]]:
    import jax
    import jax.numpy as jnp

    _, shape = shapes("fsdp")

    def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
        def layer(h: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
            return jax.nn.gelu(h @ weight), None

        return jax.lax.scan(layer, x, weights)[0].astype(jnp.float32).sum()

    arguments = (shape(LAYERS, WIDTH, WIDTH, over=(None, "fsdp")), shape(ROWS, WIDTH, over=("fsdp",)))
    return jax.grad(loss), arguments


def make_ring() -> tuple[Any, tuple[Any, ...]]:
    """The two products of a layer whose positions and width are split over tensor, and a broadcast of a device's part.

    A device's part of a product takes as long as eight devices' would with an eighth of the width: large enough to hide
    a message.
    """
    import jax
    from jax.sharding import PartitionSpec

    from nightjar_models.parallel.matmul import gather_matmul, matmul_scatter
    from nightjar_models.parallel.pipeline import broadcast

    mesh, shape = shapes("tensor")

    def layer(x: jax.Array, w_in: jax.Array, w_out: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = matmul_scatter(jax.nn.gelu(gather_matmul(x, w_in, "tensor")), w_out, "tensor")
        return out, broadcast(out, "tensor", source=3, platform=mesh.devices.flat[0].platform)

    rows, columns = PartitionSpec("tensor"), PartitionSpec(None, "tensor")  # type: ignore[no-untyped-call]

    def loss(*arguments: jax.Array) -> Any:
        run = jax.shard_map(layer, mesh=mesh, in_specs=(rows, columns, rows), out_specs=(rows, rows), check_vma=False)
        return run(*arguments)

    width = 4 * WIDTH
    arguments = (
        shape(DEVICES * ROWS, width, over=("tensor",)),
        shape(width, 4 * width, over=(None, "tensor")),
        shape(4 * width, width, over=("tensor",)),
    )
    return loss, arguments


def make_fp8() -> tuple[Any, tuple[Any, ...]]:
    """A plain layer's product and its experts' after it, on each device for its own rows, and all gradients."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from nightjar_models.architectures.precision import Fp8Product

    _, shape = shapes("data")
    graph, state = nnx.split(nnx.List([Fp8Product(), Fp8Product()]))

    def loss(state: Any, x: jax.Array, plain: jax.Array, experts: jax.Array) -> jax.Array:
        first, second = nnx.merge(graph, state)
        h = first(x, plain, (((1,), (0,)), ((), ()))).reshape(EXPERTS, 1, -1, WIDTH)
        return second(h, experts, (((3,), (1,)), ((0,), (0,)))).astype(jnp.float32).sum()

    arguments = (
        jax.eval_shape(lambda: state),
        shape(DEVICES * ROWS, WIDTH, over=("data",)),
        shape(WIDTH, WIDTH, over=(None, None)),
        shape(EXPERTS, WIDTH, WIDTH, over=(None, None, None)),
    )
    return jax.value_and_grad(loss, (0, 1, 2, 3)), arguments


PROGRAMS: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {"scan": make_scan, "ring": make_ring, "fp8": make_fp8}


if __name__ == "__main__":
    for program in sys.argv[1:] or PROGRAMS:
        recorded(program).write_bytes(lzma.compress(compile_program(program)))
