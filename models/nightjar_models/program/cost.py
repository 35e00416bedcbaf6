"""Operations of an instruction and bytes that it moves through the device's memory.

In: a `Module`. Out: a `Cost` for each instruction that runs. Flops count a multiply and an add for each step of a
matrix product, convolution or attention, and one for each element of other floating-point arithmetic, fusions included.
Bytes count operands and result; if only a part of an operand is read (slice, gather) or written (dynamic-update-slice,
scatter; within a fusion too), only that part counts. A custom call of unknown arithmetic counts only its bytes.

Source: openxla/xla, xla/service/hlo_cost_analysis.cc, whose conventions these are; Dao et al. 2022 (FlashAttention) for
attention, whose backward pass does five products to the forward pass's two.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from nightjar_models.measuring.hlo import count_elements, size_bytes
from nightjar_models.program.module import FREE, Module, read_config
from nightjar_models.program.replica_groups import collective_kind

ARITHMETIC = frozenset(
    (
        *("abs", "add", "and", "ceil", "clamp", "compare", "divide", "floor", "is-finite", "maximum", "minimum"),
        *("multiply", "negate", "not", "or", "remainder", "round-nearest-afz", "round-nearest-even", "select", "sign"),
        *("subtract", "xor", "atan2", "cbrt", "cosine", "erf", "exponential", "exponential-minus-one", "log"),
        *("log-plus-one", "logistic", "power", "rsqrt", "sine", "sqrt", "tan", "tanh"),
    )
)
PARTIAL = frozenset(("slice", "dynamic-slice", "gather"))
UPDATES = frozenset(("dynamic-update-slice", "scatter"))
_ELEMENTS = {1: "s8", 2: "s8", 6: "s8", 10: "f16", 11: "tf32", 12: "f64", 16: "bf16", 32: "f4"} | dict.fromkeys(
    (19, 20, 23, 24, 25, 28, 29, 33, 35, 36), "f8"
)
_BYTES = frozenset((2, 6))  # S8 U8
_WITH_WORKSPACE = ("__cublas$", "__cudnn$", "te_")  # libraries whose calls have it as their last result
_HALVES = frozenset((10, 16))  # F16 BF16
_FLOATS = frozenset((10, 11, 12, 15, 16, 18, 19, 20, 23, 24, 25, 28, 29, 32, 33, 35, 36))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The work of one run.

    Attributes:
        flops: floating point operations.
        product_flops: of matrix products, convolutions and attention, which the matrix units do.
        element: of the operands of those products: bf16, f8, tf32 (float32 at JAX's default precision), ...
        bytes: read from and written to the device's memory.
        added_rows: rows that a scatter adds to 16-bit floats; updates of the same row are serialised.
    """

    flops: float
    product_flops: float
    element: str | None
    bytes: int
    added_rows: int = 0


def count_cost(module: Module, instruction: Any) -> Cost:
    """The cost of one run of an instruction."""
    if instruction.opcode in FREE or instruction.opcode.endswith("-done"):
        return Cost(flops=0.0, product_flops=0.0, element=None, bytes=0)
    if collective_kind(instruction) is not None:
        moved = sum(size_bytes(operand.shape) for operand in module.operands(instruction))
        return Cost(flops=0.0, product_flops=0.0, element=None, bytes=moved)
    products, other, element = _work(module, instruction)
    moved = _fusion_bytes(module, instruction) if instruction.opcode == "fusion" else _bytes(module, instruction)
    rows = sum(_added_rows(module, inner) for inner in _inner(module, instruction))
    return Cost(flops=products + other, product_flops=products, element=element, bytes=moved, added_rows=rows)


def _inner(module: Module, instruction: Any) -> list[Any]:
    """The instructions inside a fusion, or the instruction itself."""
    if instruction.opcode != "fusion":
        return [instruction]
    return [
        inner for number in instruction.called_computation_ids for inner in module.computations[number].instructions
    ]


def _added_rows(module: Module, instruction: Any) -> int:
    if instruction.opcode != "scatter" or not instruction.called_computation_ids:
        return 0
    combined = module.instructions[module.computations[instruction.called_computation_ids[0]].root_id]
    if combined.opcode == "parameter" or _first(instruction.shape).element_type not in _HALVES:
        return 0  # replaced and not added, or added by an atomic of the hardware
    operands = module.operands(instruction)
    return math.prod(operands[len(operands) // 2].shape.dimensions[:-1])  # the indices, one per row


def _work(module: Module, instruction: Any) -> tuple[float, float, str | None]:
    """Flops of products, other flops, and the element of the products' operands."""
    if instruction.opcode in ("fusion", "map"):
        products, other, element = 0.0, 0.0, None
        for number in instruction.called_computation_ids:
            for inner in module.computations[number].instructions:
                cost = _work(module, inner)
                products, other, element = products + cost[0], other + cost[1], element or cost[2]
        return products, other, element
    if instruction.opcode in ("dot", "convolution") or instruction.opcode == "custom-call":
        flops = _product_flops(module, instruction)
        return flops, 0.0, _element(module, instruction) if flops else None
    if instruction.opcode == "reduce":
        return 0.0, float(count_elements(module.operands(instruction)[0].shape)), None
    if instruction.opcode in ARITHMETIC and _first(instruction.shape).element_type in _FLOATS | {1}:
        return 0.0, float(count_elements(instruction.shape)), None
    return 0.0, 0.0, None


def _product_flops(module: Module, instruction: Any) -> float:
    operands = module.operands(instruction)
    target = instruction.custom_call_target
    if instruction.opcode == "convolution" or target.startswith("__cudnn$conv"):
        return _convolution_flops(instruction, [operand.shape for operand in operands])
    if target.startswith("__cudnn$fmha"):
        return _attention_flops(instruction, operands)
    if target.startswith("te_gemm"):  # left and right factor with their scales; neither has a batch
        sizes = (count_elements(shape) for shape in (operands[0].shape, operands[2].shape, _first(instruction.shape)))
        return 2.0 * math.isqrt(math.prod(sizes))  # of m x k, k x n and m x n
    contracting = list(instruction.dot_dimension_numbers.lhs_contracting_dimensions)
    if target.startswith("__cublas$"):
        gemm = read_config(instruction).get("gemm_backend_config", {})
        numbers = gemm.get("dot_dimension_numbers", {}).get("lhs_contracting_dimensions", [])
        contracting = [int(number) for number in numbers]
    elif target == "__cudnn$blockScaledDot":
        contracting = [len(operands[0].shape.dimensions) - 1]
    if not contracting or not operands:
        return 0.0
    left = operands[0].shape.dimensions
    steps = math.prod(left[number] for number in contracting)
    return 2.0 * float(math.prod(_first(instruction.shape).dimensions) * steps)


def _convolution_flops(instruction: Any, operands: list[Any]) -> float:
    result = _first(instruction.shape)
    target = instruction.custom_call_target
    if len(operands) < 2:
        return 0.0
    output, kernel = result, operands[1]  # of the forward convolution
    if "BackwardInput" in target:
        output = operands[0]
    elif "BackwardFilter" in target:
        output, kernel = operands[1], result
    dimension = instruction.convolution_dimension_numbers.kernel_output_feature_dimension
    features = 0
    if dimension < len(kernel.dimensions):
        features = kernel.dimensions[dimension]
    if not features:
        return 0.0
    return float(2.0 * math.prod(output.dimensions) * math.prod(kernel.dimensions) / features)


def _attention_flops(instruction: Any, operands: list[Any]) -> float:
    config = read_config(instruction).get("cudnn_fmha_backend_config", {})
    scores = [int(size) for size in config.get("intermediate_tensor_shape", {}).get("dimensions", [])]
    width = 0
    if operands and operands[0].shape.dimensions:
        width = operands[0].shape.dimensions[-1]
    products = 2
    if "Backward" in instruction.custom_call_target:
        products = 5
    computed = 0.5 if config.get("mask_type") == "CAUSAL" else 1.0  # half of the scores are skipped
    if scores:
        return 2.0 * products * math.prod(scores) * width * computed
    return 0.0


def _element(module: Module, instruction: Any) -> str | None:
    kinds = [_ELEMENTS.get(operand.shape.element_type) for operand in module.operands(instruction)[:2]]
    if kinds:
        return kinds[0]
    return None


def _first(shape: Any) -> Any:
    while shape.tuple_shapes:
        shape = shape.tuple_shapes[0]
    return shape


def _bytes(module: Module, instruction: Any) -> int:
    operands = [size_bytes(operand.shape) for operand in module.operands(instruction)]
    if instruction.opcode in PARTIAL:
        return 2 * size_bytes(instruction.shape) + sum(operands[1:])
    if instruction.opcode in ("dynamic-update-slice", "scatter") and len(operands) > 1:
        return 2 * (operands[1] if instruction.opcode == "dynamic-update-slice" else operands[-1])
    parts = list(instruction.shape.tuple_shapes)
    if instruction.opcode == "copy-start":
        parts = parts[:1]
    elif parts and instruction.custom_call_target.startswith(_WITH_WORKSPACE) and parts[-1].element_type in _BYTES:
        parts = parts[:-1]  # the workspace: reserved, but not moved
    return sum(size_bytes(part) for part in parts or [instruction.shape]) + sum(operands)


def _fusion_bytes(module: Module, fusion: Any) -> int:
    body = module.computations[fusion.called_computation_ids[0]]
    users: dict[int, list[Any]] = defaultdict(list)
    for inner in body.instructions:
        for number in inner.operand_ids:
            users[number].append(inner)
    read = sum(_read(instruction, users) for instruction in body.instructions if instruction.opcode == "parameter")
    root = module.instructions[body.root_id]
    roots = module.operands(root) if root.opcode == "tuple" else [root]
    return read + sum(_written(module, instruction) for instruction in roots)


def _read(parameter: Any, users: dict[int, list[Any]]) -> int:
    """Bytes that a fusion reads of a parameter, behind bitcasts: slices read a part, in-place updates nothing."""
    waiting, total = [parameter], 0
    while waiting:
        value = waiting.pop()
        for user in users[value.id] or [None]:
            if user is not None and user.opcode == "bitcast":
                waiting.append(user)
            elif user is not None and user.opcode in PARTIAL and user.operand_ids[0] == value.id:
                total += size_bytes(user.shape)
            elif user is not None and user.opcode in UPDATES and user.operand_ids[0] == value.id:
                continue
            else:
                return size_bytes(parameter.shape)
    return min(total, size_bytes(parameter.shape))


def _written(module: Module, root: Any) -> int:
    while root.opcode == "bitcast":
        root = module.operands(root)[0]
    if root.opcode == "scatter":
        return 2 * size_bytes(module.operands(root)[-1].shape)  # the old values are read as well
    return size_bytes(module.operands(root)[1].shape if root.opcode == "dynamic-update-slice" else root.shape)
