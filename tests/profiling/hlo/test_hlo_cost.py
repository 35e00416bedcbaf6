from collections.abc import Callable
from typing import Any

import pytest

from nightjar_profiling.hlo.hlo import read_program
from nightjar_profiling.protos import hlo_pb2

jax = pytest.importorskip("jax", reason="JAX is not installed")
jnp = jax.numpy


def compiled(function: Callable[..., Any], *arguments: Any) -> tuple[Any, hlo_pb2.HloProto]:
    found = jax.jit(function).lower(*arguments).compile()
    proto = hlo_pb2.HloProto()
    proto.hlo_module.ParseFromString(found.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto())
    return found, proto


def totals(proto: hlo_pb2.HloProto) -> tuple[float, float, float]:
    computations = {one.id: one.name for one in proto.hlo_module.computations}
    entry = computations[proto.hlo_module.entry_computation_id]
    program = read_program(proto.SerializeToString(), 1, "test")
    ran = [one for one in program.instructions.values() if one.computation == entry]
    return (
        sum(one.flops or 0.0 for one in ran),
        sum(one.transcendentals for one in ran),
        sum(one.bytes_accessed or 0 for one in ran),
    )


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, w: x @ w, [(64, 64), (64, 128)]),
        (lambda x, w: jax.nn.gelu(x @ w).sum(), [(64, 64), (64, 128)]),
        (lambda x: jax.nn.softmax(x), [(64, 64)]),
        (lambda x, k: jax.lax.conv(x, k, (1, 1), "VALID"), [(2, 3, 16, 16), (8, 3, 3, 3)]),
        (jax.grad(lambda x, k: jax.lax.conv(x, k, (2, 2), "VALID").sum()), [(2, 3, 16, 16), (8, 3, 2, 2)]),
        (jax.grad(lambda x, w: jnp.tanh(x @ w).mean()), [(64, 64), (64, 128)]),
        (lambda x: x[3:5] * 2, [(64, 64)]),
        (lambda x: x.at[3].set(1.0), [(64, 64)]),
        (lambda x, y: jnp.einsum("bij,bjk->bik", x, y), [(4, 8, 16), (4, 16, 8)]),
        (lambda x: jnp.var(x, axis=1), [(64, 64)]),
    ],
    ids=[
        "matmul",
        "gelu",
        "softmax",
        "convolution",
        "strided",
        "gradient",
        "slice",
        "update",
        "batched dot",
        "variance",
    ],
)
def test_flops_and_bytes_equal_those_of_xla(function: Callable[..., Any], shapes: list[tuple[int, ...]]) -> None:
    found, proto = compiled(function, *(jnp.ones(shape) for shape in shapes))
    says = found.cost_analysis()
    expected = tuple(says.get(name) or 0.0 for name in ("flops", "transcendentals", "bytes accessed"))
    assert totals(proto) == expected


def test_the_flops_of_a_loop_are_unknown_and_integers_have_none() -> None:
    _, proto = compiled(lambda x: jax.lax.fori_loop(0, x.shape[0], lambda i, y: y * 2, x), jnp.ones((5,)))
    program = read_program(proto.SerializeToString(), 1, "test")
    assert [one.flops for one in program.instructions.values() if one.opcode == "while"] == [None]
    assert totals(compiled(lambda x: x * 3 + 1, jnp.arange(64))[1])[0] == 0


GEMM = '{"gemm_backend_config": {"dot_dimension_numbers": {"lhs_contracting_dimensions": ["1"]}}}'
ATTENTION = (
    '{"cudnn_fmha_backend_config": {"mask_type": "%s", "intermediate_tensor_shape": {"dimensions": [2, 4, 8, 9]}}}'
)
MATRICES, QUERY = ([8, 16], [16, 4], [8, 4]), ([2, 8, 4, 16], [2, 9, 4, 16], [2, 8, 4, 16])
INPUT, KERNEL, OUTPUT = [2, 16, 16, 3], [3, 3, 3, 5], [2, 14, 14, 5]


@pytest.mark.parametrize(
    ("target", "config", "shapes", "flops"),
    [
        ("__cublas$gemm", GEMM, MATRICES, 2 * 8 * 4 * 16),
        ("__cublas$gemm", "not json", MATRICES, None),
        ("__cudnn$fmhaSoftmax", ATTENTION % "NO_MASK", QUERY, 2 * 2 * (2 * 4 * 8 * 9) * 16),
        ("__cudnn$fmhaSoftmax", ATTENTION % "CAUSAL", QUERY, 2 * (2 * 4 * 8 * 9) * 16),
        ("__cudnn$fmhaSoftmaxBackward", ATTENTION % "NO_MASK", QUERY, 5 * 2 * (2 * 4 * 8 * 9) * 16),
        ("__cudnn$convForward", "", (INPUT, KERNEL, OUTPUT), 2 * (2 * 14 * 14 * 5) * (3 * 3 * 3)),
        ("__cudnn$convBackwardInput", "", (OUTPUT, KERNEL, INPUT), 2 * (2 * 14 * 14 * 5) * (3 * 3 * 3)),
        ("__cudnn$convBackwardFilter", "", (INPUT, OUTPUT, KERNEL), 2 * (2 * 14 * 14 * 5) * (3 * 3 * 3)),
    ],
)
def test_a_product_of_a_library_is_counted_by_its_configuration(
    target: str, config: str, shapes: tuple[list[int], ...], flops: float | None
) -> None:
    proto = hlo_pb2.HloProto()
    body = proto.hlo_module.computations.add(name="entry", id=1, root_id=3)
    for number, dimensions in enumerate(shapes[:2], 1):
        one = body.instructions.add(name=f"p.{number}", opcode="parameter", id=number, parameter_number=number - 1)
        one.shape.element_type = 11
        one.shape.dimensions.extend(dimensions)
    product = body.instructions.add(
        name="call", opcode="custom-call", id=3, operand_ids=[1, 2], custom_call_target=target
    )
    product.backend_config = config.encode()
    product.convolution_dimension_numbers.kernel_output_feature_dimension = 3
    product.shape.tuple_shapes.add(element_type=11).dimensions.extend(shapes[2])
    product.shape.tuple_shapes.add(element_type=2).dimensions.append(1024)  # scratch
    assert read_program(proto.SerializeToString(), 1, "test").instructions["call"].flops == flops
