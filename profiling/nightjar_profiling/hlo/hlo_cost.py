"""Floating point operations and memory traffic of HLO instructions.

In: a module's protobuf. Out: a `Cost` for each instruction. The counting follows XLA's own: one flop for each element
of an elementwise floating point operation, a multiply and an add for each step of a contraction, transcendental
functions counted separately. Calls of cuBLAS and of cuDNN's convolutions and attention count as the products that they
are. A fusion or a call has the flops of the computations that it calls, but the traffic of its
own operands and result. Unknown costs are None: a loop, whose instructions have their own, and any other
custom call.

Bytes count operands and result. If an instruction reads (slice, dynamic-slice, gather) or writes (dynamic-update-slice,
scatter) only part of an operand, only that part counts, inside fusions too.

Source: openxla/xla:xla/service/hlo_cost_analysis.cc
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from math import prod

from nightjar_profiling.hlo.shapes import count_bytes, count_elements, is_float
from nightjar_profiling.protos import hlo_pb2

# One flop per element of the result, if the first operand is floating point.
ELEMENTWISE = frozenset(
    (
        *("abs", "add", "and", "ceil", "clamp", "compare", "divide", "floor", "is-finite", "maximum", "minimum"),
        *("multiply", "negate", "not", "or", "remainder", "round-nearest-afz", "round-nearest-even", "select", "sign"),
        *("subtract", "xor"),
    )
)
TRANSCENDENTAL = frozenset(
    (
        *("atan2", "cbrt", "cosine", "erf", "exponential", "exponential-minus-one", "log", "log-plus-one", "logistic"),
        *("power", "rsqrt", "sine", "sqrt", "tan", "tanh"),
    )
)
PARTIAL_READS = frozenset(("slice", "dynamic-slice", "gather"))
IN_PLACE = frozenset(("dynamic-update-slice", "scatter"))
FREE = frozenset(
    (
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"),
        "opt-barrier",
    )
)
CALLS = frozenset(("fusion", "call", "async-start", "map"))
UNKNOWN = frozenset(("while", "conditional", "custom-call", "cholesky", "triangular-solve", "fft"))


Work = tuple[float | None, float]  # flops (None if unknown) and transcendentals


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of one run of an instruction.

    Attributes:
        flops: floating point operations; None if unknown.
    """

    flops: float | None
    transcendentals: float
    bytes_accessed: int | None


def count_costs(module: hlo_pb2.HloModule) -> dict[int, Cost]:
    """The cost of every instruction, by its id. Linear in the size of the module."""
    return _Counter(module).count()


class _Counter:
    """Counts computation by computation, callees first."""

    def __init__(self, module: hlo_pb2.HloModule) -> None:
        self.instructions = {i.id: i for computation in module.computations for i in computation.instructions}
        self.computations = {computation.id: computation for computation in module.computations}
        self.sizes = {number: count_bytes(i.shape) for number, i in self.instructions.items()}  # each is read often
        self.costs: dict[int, Cost] = {}
        self.totals: dict[int, Work] = {}

    def count(self) -> dict[int, Cost]:
        # XLA writes callees before their callers. In a damaged file with another order, costs stay unknown.
        for number, computation in self.computations.items():
            costs = {instruction.id: self._count(instruction) for instruction in computation.instructions}
            self.totals[number] = _sum([(cost.flops, cost.transcendentals) for cost in costs.values()])
            self.costs |= costs
        return self.costs

    def _count(self, instruction: hlo_pb2.HloInstruction) -> Cost:
        if instruction.opcode in FREE:
            return Cost(0.0, 0.0, 0)
        flops, transcendentals = self._work(instruction)
        return Cost(flops, transcendentals, self._bytes(instruction))

    def _work(self, instruction: hlo_pb2.HloInstruction) -> Work:
        opcode, elements = instruction.opcode, count_elements(instruction.shape)
        if opcode in CALLS:
            called = [self.totals.get(number, (None, 0.0)) for number in instruction.called_computation_ids]
            return _scale(_sum(called), elements if opcode == "map" else 1)
        if opcode in ("dot", "convolution", "custom-call"):
            return self._product_flops(instruction), 0.0
        if opcode in UNKNOWN or opcode == "reduce-window":
            return None, 0.0
        if opcode in ("reduce", "all-reduce", "all-reduce-start", "reduce-scatter"):
            return self._reduction(instruction, elements)
        if instruction.operand_ids:
            operand = self._operand(instruction, 0)
        else:
            operand = instruction
        if opcode in ELEMENTWISE and is_float(operand.shape):
            flops = float(elements)
        else:
            flops = 0.0
        return flops, float(elements) if opcode in TRANSCENDENTAL else 0.0

    def _reduction(self, instruction: hlo_pb2.HloInstruction, elements: int) -> Work:
        if not instruction.called_computation_ids:
            return None, 0.0
        steps = elements
        if instruction.opcode == "reduce":
            arrays = max(len(instruction.operand_ids) // 2, 1)
            steps = max(count_elements(self._operand(instruction, 0).shape) - elements // arrays, 0)
        return _scale(self.totals.get(instruction.called_computation_ids[0], (None, 0.0)), steps)

    def _product_flops(self, instruction: hlo_pb2.HloInstruction) -> float | None:
        if len(instruction.operand_ids) < 2:
            return None
        left, right = (self._operand(instruction, number).shape for number in (0, 1))
        shape, target = instruction.shape, instruction.custom_call_target
        result = shape.tuple_shapes[0] if shape.tuple_shapes else shape
        elements = count_elements(result)
        if target.startswith("__cudnn$fmha"):
            return _attention_flops(instruction, left)
        if instruction.opcode == "convolution" or target.startswith("__cudnn$conv"):
            output, kernel = result, right  # of the forward convolution, which has as many operations as its gradients
            if "BackwardInput" in target:
                output = left
            elif "BackwardFilter" in target:
                output, kernel = right, result
            return _convolution_flops(instruction, output, kernel)
        contracting = list(instruction.dot_dimension_numbers.lhs_contracting_dimensions)
        if instruction.opcode == "custom-call":
            contracting = _gemm_contraction(instruction)
            if not contracting:
                return None
        if any(dimension >= len(left.dimensions) for dimension in contracting):
            return None
        return 2.0 * elements * prod(left.dimensions[dimension] for dimension in contracting)

    def _bytes(self, instruction: hlo_pb2.HloInstruction) -> int | None:
        opcode, called = instruction.opcode, instruction.called_computation_ids
        if opcode in ("while", "conditional", "call", "async-start") or opcode.endswith("-done"):
            return None
        if opcode == "fusion" and called and called[0] in self.computations:
            return self._fusion_bytes(self.computations[called[0]])
        operands = [self.sizes.get(number, 0) for number in instruction.operand_ids]
        if opcode in PARTIAL_READS:
            return 2 * self.sizes[instruction.id] + sum(operands[1:])
        if opcode == "dynamic-update-slice" and len(operands) > 1:
            return 2 * operands[1] + sum(operands[2:])
        if opcode == "scatter" and len(operands) > 1:
            return 2 * operands[-1] + sum(operands[1:-1])
        return self.sizes[instruction.id] + sum(operands)

    def _fusion_bytes(self, body: hlo_pb2.HloComputation) -> int:
        users: dict[int, list[hlo_pb2.HloInstruction]] = defaultdict(list)
        for instruction in body.instructions:
            for operand in instruction.operand_ids:
                users[operand].append(instruction)
        parameters = [instruction for instruction in body.instructions if instruction.opcode == "parameter"]
        return sum(self._read_bytes(parameter, users) for parameter in parameters) + self._written_bytes(body)

    def _read_bytes(self, parameter: hlo_pb2.HloInstruction, users: dict[int, list[hlo_pb2.HloInstruction]]) -> int:
        """Bytes of a fusion's parameter that its users read, also through bitcasts and conversions."""
        aliases, readers, converted = {parameter.id}, list[hlo_pb2.HloInstruction](), False
        waiting = [parameter.id]
        while waiting:
            for user in users[waiting.pop()]:
                if user.opcode not in ("bitcast", "convert"):
                    readers.append(user)
                elif user.id not in aliases:
                    aliases.add(user.id)
                    waiting.append(user.id)
                    converted |= user.opcode == "convert"
        whole, elements = self.sizes[parameter.id], max(count_elements(parameter.shape), 1)
        if converted:
            partial = PARTIAL_READS
        else:
            partial = PARTIAL_READS | IN_PLACE
        if not readers or any(user.opcode not in partial for user in readers):
            return whole
        if any(user.operand_ids[0] not in aliases or aliases & {*user.operand_ids[1:]} for user in readers):
            return whole  # a reader uses it as an index or an update
        read = 0
        for user in readers:
            if user.opcode in PARTIAL_READS:
                read += count_elements(user.shape) * whole // elements
            elif user.opcode == "scatter":
                read += self._update_bytes(user)
        return min(whole, read)

    def _written_bytes(self, body: hlo_pb2.HloComputation) -> int:
        root = self.instructions.get(body.root_id)
        if root is None:
            return 0
        if root.opcode == "tuple":
            roots = [self.instructions[number] for number in root.operand_ids]
        else:
            roots = [root]
        written = 0
        for instruction in roots:
            for _ in range(len(body.instructions)):  # ends at a cycle, which a damaged file may contain
                if instruction.opcode != "bitcast" or not instruction.operand_ids:
                    break
                instruction = self._operand(instruction, 0)
            in_place = instruction.opcode in IN_PLACE
            written += self._update_bytes(instruction) if in_place else count_bytes(instruction.shape)
        return written

    def _update_bytes(self, instruction: hlo_pb2.HloInstruction) -> int:
        """Bytes that are written into a part of the first operand."""
        return count_bytes(self._operand(instruction, 1 if instruction.opcode == "dynamic-update-slice" else -1).shape)

    def _operand(self, instruction: hlo_pb2.HloInstruction, number: int) -> hlo_pb2.HloInstruction:
        return self.instructions.get(instruction.operand_ids[number], hlo_pb2.HloInstruction())


def _sum(parts: list[Work]) -> Work:
    flops = [part[0] for part in parts if part[0] is not None]
    return sum(flops) if len(flops) == len(parts) else None, sum(part[1] for part in parts)


def _scale(work: Work, factor: int) -> Work:
    flops, transcendentals = work
    return None if flops is None else flops * factor, transcendentals * factor


def _convolution_flops(
    instruction: hlo_pb2.HloInstruction, output: hlo_pb2.Shape, kernel: hlo_pb2.Shape
) -> float | None:
    """Two for each element of the output and of the kernel that makes one of its features, but for dilation's zeros."""
    dimension = instruction.convolution_dimension_numbers.kernel_output_feature_dimension
    if dimension >= len(kernel.dimensions) or not kernel.dimensions[dimension]:
        return None
    holes = prod(max(each.base_dilation, 1) for each in instruction.window.dimensions)
    return 2.0 * count_elements(output) * count_elements(kernel) / kernel.dimensions[dimension] / holes


def _attention_flops(instruction: hlo_pb2.HloInstruction, query: hlo_pb2.Shape) -> float | None:
    """Two products over the scores, in the backward pass five; a causal mask lets cuDNN skip half of them."""
    try:
        config = json.loads(instruction.backend_config)["cudnn_fmha_backend_config"]
        scores = prod(int(size) for size in config["intermediate_tensor_shape"]["dimensions"])
    except (ValueError, LookupError, TypeError):
        return None
    if not query.dimensions:
        return None
    flops = 2.0 * scores * query.dimensions[-1] * (5 if "Backward" in instruction.custom_call_target else 2)
    if config.get("mask_type") == "CAUSAL":
        flops /= 2
    return flops


def _gemm_contraction(instruction: hlo_pb2.HloInstruction) -> list[int]:
    """The contracting dimensions of a cuBLAS matrix product, from its backend configuration."""
    if not instruction.custom_call_target.startswith("__cublas$"):
        return []
    try:
        config = json.loads(instruction.backend_config)
        dimensions = config["gemm_backend_config"]["dot_dimension_numbers"]["lhs_contracting_dimensions"]
        return [int(number) for number in dimensions]
    except (ValueError, LookupError, TypeError):
        return []
