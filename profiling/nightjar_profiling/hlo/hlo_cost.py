"""How many floating point operations does an HLO instruction do, and how many bytes does it read and write?

In: a module's protobuf. Out: a `Cost` for each instruction. The counting follows XLA's own: one flop for each element
of an elementwise operation on floating point numbers, a multiply and an add for each step of a contraction,
transcendental functions apart; a fusion and a call cost what they call, but move only their own operands and result.
What cannot be known is None: a loop whose trip count the module does not state, a custom call that is no matrix
product.

Bytes are those of operands and result. Where only a part of an operand is looked at (slice, dynamic-slice, gather) or
written (dynamic-update-slice, scatter), only that part counts, inside a fusion too.

Source: openxla/xla:xla/service/hlo_cost_analysis.cc
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from math import prod

from nightjar_profiling.hlo.shapes import count_bytes, count_elements, is_float
from nightjar_profiling.protos import hlo_pb2

# One flop per element of the result, where the first operand is floating point.
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


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of one run of an instruction.

    Attributes:
        flops: floating point operations; None where they cannot be known.
        transcendentals: evaluations of exp, tanh and the like, which `flops` leaves out.
        bytes_accessed: read and written; None where it cannot be known.
    """

    flops: float | None
    transcendentals: float
    bytes_accessed: int | None


def count_costs(module: hlo_pb2.HloModule) -> dict[int, Cost]:
    """The cost of every instruction, by its id. Linear in the size of the module."""
    return _Counter(module).count()


class _Counter:
    """Counts computation by computation, those that are called first."""

    def __init__(self, module: hlo_pb2.HloModule) -> None:
        self.instructions = {one.id: one for c in module.computations for one in c.instructions}
        self.computations = {c.id: c for c in module.computations}
        self.sizes = {number: count_bytes(one.shape) for number, one in self.instructions.items()}  # each read often
        self.costs: dict[int, Cost] = {}
        self.totals: dict[int, tuple[float | None, float]] = {}

    def count(self) -> dict[int, Cost]:
        # XLA writes a computation after those it calls; what a damaged file has in another order is not known yet then.
        for number, computation in self.computations.items():
            flops: float | None = 0.0
            transcendentals = 0.0
            for one in computation.instructions:
                cost = self.costs[one.id] = self._count(one)
                flops = None if flops is None or cost.flops is None else flops + cost.flops
                transcendentals += cost.transcendentals
            self.totals[number] = flops, transcendentals
        return self.costs

    def _count(self, one: hlo_pb2.HloInstruction) -> Cost:
        if one.opcode in FREE:
            return Cost(0.0, 0.0, 0)
        flops, transcendentals = self._work(one)
        return Cost(flops, transcendentals, self._bytes(one))

    def _work(self, one: hlo_pb2.HloInstruction) -> tuple[float | None, float]:
        elements = count_elements(one.shape)
        if one.opcode in CALLS:
            parts = [self.totals.get(number, (None, 0.0)) for number in one.called_computation_ids]
            flops = [part[0] for part in parts]
            known = None if None in flops else sum(one for one in flops if one is not None)
            repeats = elements if one.opcode == "map" else 1
            return None if known is None else known * repeats, sum(part[1] for part in parts) * repeats
        if one.opcode in ("dot", "convolution", "custom-call"):
            return self._product_flops(one), 0.0
        if one.opcode in UNKNOWN:
            return None, 0.0
        if one.opcode in ("reduce", "all-reduce", "all-reduce-start", "reduce-scatter"):
            return self._reduction(one, elements)
        if one.opcode == "reduce-window":
            return None, 0.0
        float_input = is_float(self._operand(one, 0).shape) if one.operand_ids else is_float(one.shape)
        counts = one.opcode in ELEMENTWISE and float_input
        return float(elements) if counts else 0.0, float(elements) if one.opcode in TRANSCENDENTAL else 0.0

    def _reduction(self, one: hlo_pb2.HloInstruction, elements: int) -> tuple[float | None, float]:
        flops, transcendentals = (
            self.totals.get(one.called_computation_ids[0], (None, 0.0)) if (one.called_computation_ids) else (None, 0.0)
        )
        if one.opcode == "reduce":
            arrays = max(len(one.operand_ids) // 2, 1)
            steps = max(count_elements(self._operand(one, 0).shape) - elements // arrays, 0)
        else:
            steps = elements
        return None if flops is None else flops * steps, transcendentals * steps

    def _product_flops(self, one: hlo_pb2.HloInstruction) -> float | None:
        if len(one.operand_ids) < 2:
            return None
        left, right = (self._operand(one, number).shape for number in (0, 1))
        result = one.shape.tuple_shapes[0] if one.shape.tuple_shapes else one.shape
        contracting = list(one.dot_dimension_numbers.lhs_contracting_dimensions)
        if one.opcode == "custom-call":
            contracting = _gemm_contraction(one)
            if not contracting:
                return None
        if one.opcode == "convolution":
            dimension = one.convolution_dimension_numbers.kernel_output_feature_dimension
            features = right.dimensions[dimension] if dimension < len(right.dimensions) else 0
            return 2.0 * count_elements(result) * count_elements(right) / features if features else None
        if any(dimension >= len(left.dimensions) for dimension in contracting):
            return None
        return 2.0 * count_elements(result) * prod(left.dimensions[dimension] for dimension in contracting)

    def _bytes(self, one: hlo_pb2.HloInstruction) -> int | None:
        if one.opcode in ("while", "conditional", "call", "async-start", "async-done") or one.opcode.endswith("-done"):
            return None
        computation = self.computations.get(one.called_computation_ids[0]) if one.called_computation_ids else None
        if one.opcode == "fusion" and computation is not None:
            return self._fusion_bytes(one, computation)
        operands = [self.sizes.get(number, 0) for number in one.operand_ids]
        if one.opcode in PARTIAL_READS:
            return 2 * self.sizes[one.id] + sum(operands[1:])
        if one.opcode in ("dynamic-update-slice", "scatter") and len(operands) > 1:
            update = operands[1] if one.opcode == "dynamic-update-slice" else operands[-1]
            return 2 * update + sum(operands[2:] if one.opcode == "dynamic-update-slice" else operands[1:-1])
        return self.sizes[one.id] + sum(operands)

    def _fusion_bytes(self, one: hlo_pb2.HloInstruction, body: hlo_pb2.HloComputation) -> int:
        users: dict[int, list[hlo_pb2.HloInstruction]] = defaultdict(list)
        for inner in body.instructions:
            for operand in inner.operand_ids:
                users[operand].append(inner)
        parameters = [inner for inner in body.instructions if inner.opcode == "parameter"]
        return sum(self._read_bytes(one, users) for one in parameters) + self._written_bytes(body)

    def _read_bytes(self, parameter: hlo_pb2.HloInstruction, users: dict[int, list[hlo_pb2.HloInstruction]]) -> int:
        """Bytes of a fusion's parameter that its users really read; seen through bitcasts and conversions."""
        names, found, converted = {parameter.id}, list[hlo_pb2.HloInstruction](), False
        waiting = [parameter.id]
        while waiting:
            for user in users[waiting.pop()]:
                if user.opcode not in ("bitcast", "convert"):
                    found.append(user)
                elif user.id not in names:
                    names.add(user.id)
                    waiting.append(user.id)
                    converted |= user.opcode == "convert"
        whole, elements = self.sizes[parameter.id], count_elements(parameter.shape)
        partly = (*PARTIAL_READS, *(() if converted else IN_PLACE))
        first_only = all(user.operand_ids[0] in names and not names & {*user.operand_ids[1:]} for user in found)
        if not found or not first_only or any(user.opcode not in partly for user in found):
            return whole
        parts = (
            count_elements(user.shape) * whole // max(elements, 1)
            if user.opcode in PARTIAL_READS
            else self._update_bytes(user) * (user.opcode == "scatter")
            for user in found
        )
        return min(whole, sum(parts))

    def _written_bytes(self, body: hlo_pb2.HloComputation) -> int:
        """Bytes of a fusion's result that it really writes."""
        root = self.instructions.get(body.root_id)
        roots = [] if root is None else [root]
        if root is not None and root.opcode == "tuple":
            roots = [self.instructions[number] for number in root.operand_ids]
        written = 0
        for one in roots:
            for _ in range(len(body.instructions)):  # a circle, as a damaged file may hold, ends here
                if one.opcode != "bitcast" or not one.operand_ids:
                    break
                one = self._operand(one, 0)
            written += self._update_bytes(one) if one.opcode in IN_PLACE else count_bytes(one.shape)
        return written

    def _update_bytes(self, one: hlo_pb2.HloInstruction) -> int:
        """Bytes of what is written into a part of the first operand."""
        return count_bytes(self._operand(one, 1 if one.opcode == "dynamic-update-slice" else -1).shape)

    def _operand(self, one: hlo_pb2.HloInstruction, number: int) -> hlo_pb2.HloInstruction:
        return self.instructions.get(one.operand_ids[number], hlo_pb2.HloInstruction())


def _gemm_contraction(one: hlo_pb2.HloInstruction) -> list[int]:
    """The contracting dimensions of a matrix product by cuBLAS, from its backend configuration."""
    if not one.custom_call_target.startswith("__cublas$"):
        return []
    try:
        config = json.loads(one.backend_config)
        found = config["gemm_backend_config"]["dot_dimension_numbers"]["lhs_contracting_dimensions"]
        return [int(number) for number in found]
    except (ValueError, LookupError, TypeError):
        return []
