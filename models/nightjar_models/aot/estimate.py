"""Step time estimate: a roofline of every instruction, combined in the order of the compiler's schedule.

In: a `Module` and a `Cluster`. Out: an `Estimate`: time of each instruction, of a step, and of communication that no
computation overlaps. It is a model, not a measurement: every kernel of a kind reaches the same fraction
of the peak that bounds it (matrix units or memory). Use it to compare programs and to rank meshes.

- A kernel takes max(product flops / rate of the matrix units, other flops / rate of the FP32 units, bytes / bandwidth,
  rows that a scatter adds to 16-bit floats x `ADDED_ROW_S`), and at least `KERNEL_FLOOR_S`.
- A collective of n devices and S bytes takes, as a ring, 2 (n - 1) / n S / B for an all-reduce, (n - 1) / n S / B for
  all-gather, reduce-scatter and all-to-all, S / B for a permutation, and `HOP_S` for each step of the ring; an
  all-reduce over hosts is NCCL's double tree of hosts, up and down, with a chain in each. B is NVLink's if the group is
  within a host; else the network rate of the g group members in one host, g times one device's share, if that is less.
  Links are assumed to reach their peak: none was measured.
- One stream computes and one communicates: a `-start` waits only for the stream of communication, its `-done` makes
  the stream of computation wait. A loop takes its trip count times its body.

Source: Williams et al. 2009 (Roofline); Patarasuk and Yuan 2009 (ring all-reduce); Sanders, Speck and Träff 2009 (two
trees); NVIDIA/nccl-tests PERFORMANCE.md
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nightjar_models.hardware.target import Cluster, Target
from nightjar_models.program.cost import Cost, count_cost
from nightjar_models.program.kernels import kernel_kind
from nightjar_models.program.module import DISPATCHING, FREE, Module, read_config, read_trip_count
from nightjar_models.program.replica_groups import collective_kind, message_bytes, read_group

# The fraction of its peak that a kind of kernel reaches, measured in November 2026 on an NVIDIA H100 80GB HBM3 (driver
# 580.159.04, jax 0.11.2, cuBLAS 13.1, cuDNN 9.19): the time of every kernel in two steps of `gpt3_126m` in CUDA graphs,
# with its roofline. The comments give the fraction on `llama_125m`, which was not fitted. The other targets are assumed
# to reach the same fractions.
ATTENTION = {
    "cuDNN attention": 0.40,  # 12.55 ms for 5.00, heads of 64; llama_125m 0.39
    "cuDNN attention backward": 0.31,  # 20.28 ms for 6.25; llama_125m 0.31
}
# Matrix products of any library: a device chooses between cuBLASLt (0.81) and Triton (0.71, if it was
# chosen), and a compiler without one cannot: 61.4 ms for 49.1; llama_125m 0.78. Convolutions, FP8 and Pallas were not
# measured: assumed.
PRODUCTS = 0.80
MEMORY = 0.80  # 73.4 ms for 58.9 in fusions of more than 50 MB; llama_125m 0.88
# A scatter adds to 16-bit floats by compare-and-swap, which serialises updates of the same row, such as the rows of
# an embedding's most frequent tokens: 65,536 rows of 768 from a text took 54.6 ms; llama_125m 0.79 us a row, and, with
# rows of 4,096, gpt3_5b 0.34 to 0.49. It depends on the text: rows that are drawn evenly take less than a twentieth.
ADDED_ROW_S = 8.3e-7
# Seven tiny presets on that H100: their fusions take 1.3 to 2.1 us, products more.
KERNEL_FLOOR_S = 2e-6
HOP_S = {"nvlink": 1e-6, "network": 5e-6}  # assumed: latency of one step of a ring or tree; not measured here

Bound = Literal["compute", "memory", "latency", "nvlink", "network"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One run of an instruction: its time and its bound."""

    instruction: Any
    kind: str
    cost: Cost
    seconds: float
    bound: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A run of an instruction on the timeline of a step; `stream` is compute or communication."""

    instruction: str
    stream: str
    start_s: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A step.

    Attributes:
        step_s: from start to end.
        compute_s: sum over kernels bound by arithmetic; memory_s: by memory; latency_s: by their launch.
        nvlink_s: sum over collectives within a host; network_s: over collectives between hosts.
        exposed_s: the part of both during which nothing is computed.
        flops: of a step, on each device.
        spans: the timeline, loops unrolled.
        timed: one run of each instruction, by its id.
    """

    step_s: float
    compute_s: float
    memory_s: float
    latency_s: float
    nvlink_s: float
    network_s: float
    exposed_s: float
    flops: float
    spans: tuple[Span, ...]
    timed: Mapping[int, Timed]


def estimate_step(module: Module, cluster: Cluster) -> Estimate:
    """The estimate of a step of a compiled program on a cluster."""
    timed = {
        instruction.id: time_instruction(module, instruction, cluster)
        for instruction, _ in module.executed()
        if not instruction.opcode.endswith("-done")
    }
    line = _Line(module, timed)
    line.run(module.entry)
    sums = dict.fromkeys(("compute", "memory", "latency", "nvlink", "network"), 0.0)
    flops = 0.0
    for instruction, runs in module.executed():
        if instruction.id in timed:
            sums[timed[instruction.id].bound] += runs * timed[instruction.id].seconds
            flops += runs * timed[instruction.id].cost.flops
    return Estimate(
        step_s=max(line.now, line.communicating_until),
        compute_s=sums["compute"],
        memory_s=sums["memory"],
        latency_s=sums["latency"],
        nvlink_s=sums["nvlink"],
        network_s=sums["network"],
        exposed_s=line.exposed,
        flops=flops,
        spans=tuple(line.spans),
        timed=timed,
    )


def time_instruction(module: Module, instruction: Any, cluster: Cluster) -> Timed:
    """The time of one run of an instruction."""
    cost, kind, target = count_cost(module, instruction), kernel_kind(instruction), cluster.target
    if collective_kind(instruction) is not None:
        group = read_group(instruction, cluster.devices)
        amount = message_bytes(module, instruction, len(group))
        bound, seconds = time_collective(kind, amount, group, target)
        return Timed(instruction=instruction, kind=kind, cost=cost, seconds=seconds, bound=bound)
    rate = ATTENTION.get(kind, PRODUCTS) * target.flops_per_s.get(cost.element or "", target.flops_per_s["f32"])
    arithmetic = max(cost.product_flops / rate, (cost.flops - cost.product_flops) / target.flops_per_s["f32"])
    moved = max(cost.bytes / (MEMORY * target.memory_bytes_per_s), cost.added_rows * ADDED_ROW_S)
    seconds = max(arithmetic, moved, KERNEL_FLOOR_S)
    bound = "memory"
    if arithmetic >= moved:
        bound = "compute"
    if seconds == KERNEL_FLOOR_S:
        bound = "latency"
    return Timed(instruction=instruction, kind=kind, cost=cost, seconds=seconds, bound=bound)


def time_collective(kind: str, amount: int, group: tuple[int, ...], target: Target) -> tuple[Bound, float]:
    """The bound of a collective, and its time.

    Args:
        kind: such as `all-gather`.
        amount: bytes of the message.
        group: its devices, which fill hosts in the order of their numbers.
    """
    size = len(group)
    hosts = [device // target.devices_per_host for device in group]
    within = len(set(hosts)) == 1
    bound: Bound = "nvlink"
    rate = target.nvlink_bytes_per_s
    if not within:
        bound = "network"
        rate = min(rate, hosts.count(hosts[0]) * target.network_bytes_per_s)
    if size == 1:
        return bound, KERNEL_FLOOR_S
    sent, hops = amount * (size - 1) / size, size - 1
    chain = 0  # steps within a host
    if kind == "all-reduce" and within:
        sent, hops = 2 * sent, 2 * hops
    elif kind == "all-reduce":
        count = len(set(hosts))
        sent, hops, chain = 2 * sent, 2 * math.ceil(math.log2(count)), 2 * (size // count - 1)
    elif kind == "collective-permute":
        sent, hops = float(amount), 1
    elif kind == "all-to-all" or kind == "ragged-all-to-all":
        hops = 1
    return bound, sent / rate + hops * HOP_S[bound] + chain * HOP_S["nvlink"]


class _Line:
    """Walks the schedule and puts each run on one of two streams."""

    def __init__(self, module: Module, timed: dict[int, Timed]) -> None:
        self.module, self.timed = module, timed
        self.now = 0.0  # of the stream of computation
        self.communicating_until = 0.0
        self.exposed = 0.0
        self.spans: list[Span] = []
        self._ends: dict[int, float] = {}  # of collectives in flight, by the id of their start

    def run(self, computation: int) -> None:
        for number in self.module.order[computation]:
            instruction = self.module.instructions[number]
            if instruction.opcode == "while":
                body, condition = instruction.called_computation_ids[:2]
                for _ in range(read_trip_count(instruction) or 1):
                    self.run(condition)
                    self.run(body)
                self.run(condition)  # the last evaluation, which ends the loop
            elif instruction.opcode == "async-start":
                self._start_wrapped(instruction)
            elif instruction.opcode in DISPATCHING:
                for called in instruction.called_computation_ids:
                    self.run(called)
            elif instruction.opcode.endswith("-done"):
                self._wait(instruction)
            elif instruction.id in self.timed:
                self._dispatch(instruction)

    def _dispatch(self, instruction: Any) -> None:
        timed = self.timed[instruction.id]
        if collective_kind(instruction) is None:
            self._span(instruction, "compute", self.now, timed.seconds)
            self.now += timed.seconds
            return
        end = self._communicate(instruction, timed.seconds)
        if instruction.opcode.endswith("-start") and not _is_sync(instruction):
            self._ends[instruction.id] = end
        else:
            self._until(end)

    def _start_wrapped(self, start: Any) -> None:
        inner = [
            self.module.instructions[number]
            for called in start.called_computation_ids
            for number in self.module.order[called]
        ]
        for instruction in inner:
            if instruction.opcode in FREE or instruction.id not in self.timed:
                continue
            if collective_kind(instruction) is None:
                self._dispatch(instruction)
            else:
                self._ends[start.id] = self._communicate(instruction, self.timed[instruction.id].seconds)
        if _is_sync(start):
            self._until(self._ends.pop(start.id, self.now))

    def _communicate(self, instruction: Any, seconds: float) -> float:
        begin = max(self.now, self.communicating_until)
        self._span(instruction, "communication", begin, seconds)
        self.communicating_until = begin + seconds
        return self.communicating_until

    def _wait(self, done: Any) -> None:
        if done.operand_ids:
            self._until(self._ends.pop(done.operand_ids[0], self.now))

    def _until(self, end: float) -> None:
        if end > self.now:
            self.exposed += end - self.now
            self.now = end

    def _span(self, instruction: Any, stream: str, start: float, seconds: float) -> None:
        self.spans.append(Span(instruction=instruction.name, stream=stream, start_s=start, seconds=seconds))


def _is_sync(instruction: Any) -> bool:
    """Whether the compiler made a collective synchronous."""
    return bool(read_config(instruction).get("collective_backend_config", {}).get("is_sync", False))
