"""Facts, samples and environment of an ahead-of-time compilation, for a `nightjar.run/1` document.

In: a `Compilation`, its cluster and estimate. Out: plain data. The device names say "ahead of time", so that these
facts are never compared with facts of a program compiled on the device, whose kernels are chosen by timing.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from nightjar_models.aot.compile import Compilation
from nightjar_models.aot.estimate import Estimate
from nightjar_models.hardware.target import Cluster
from nightjar_models.measuring.facts import tally_module
from nightjar_models.measuring.result import Sample
from nightjar_models.program.digest import digest_program
from nightjar_models.program.kernels import count_flops, tally_kernels, tally_messages
from nightjar_models.program.lines import tally_lines
from nightjar_models.program.memory import reserved_bytes, top_buffers
from nightjar_models.program.module import Module

TOP_BUFFERS = 12  # persistent ones, and as many temporary ones
PROGRAM = "train_step"
TIMES = ("step_s", "compute_s", "memory_s", "latency_s", "communication_s", "exposed_s")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The target of a compilation: absent GPUs, or the CPU of this machine.

    Attributes:
        name: such as `h100x8` or `cpux2`.
        cluster: None for a CPU, of which no step time is estimated.
    """

    name: str
    devices: int
    cluster: Cluster | None = None

    @property
    def memory_bytes(self) -> int:
        """Memory of a device; 0 for a CPU, whose memory is not a property of the program's target."""
        return 0 if self.cluster is None else self.cluster.target.memory_bytes


def render_facts(
    compilation: Compilation, estimate: Estimate | None, place: Place, program: str = PROGRAM
) -> dict[str, Any]:
    """The facts of a compiled step."""
    module = compilation.module
    kernels = tally_kernels(module)
    times = {} if estimate is None else {name: getattr(estimate, name) for name in TIMES}
    return {
        "program": program,
        **tally_module([module.proto.hlo_module]),
        "flops": count_flops(module),
        "memory": dict(compilation.memory),
        "ahead": {
            "target": place.name,
            "fingerprint": fingerprint(module),
            "kernels": {kind: dataclasses.asdict(work) for kind, work in kernels.items()},
            "messages": {
                kind: dataclasses.asdict(work) for kind, work in tally_messages(module, place.devices).items()
            },
            "buffers": [dataclasses.asdict(buffer) for buffer in top_buffers(module, TOP_BUFFERS, compilation.names)],
            "reserved_bytes": reserved_bytes(module),
            "device_bytes": place.memory_bytes,
            "code_bytes": compilation.code_bytes,
            "spill_bytes": compilation.spill_bytes,
            "estimate": times,
            "lints": list(compilation.warnings),
            "computation": f"jaxlib {version('jaxlib')}: {digest_program(module)}",
            "lines": tally_lines(module),
        },
    }


def render_samples(compilation: Compilation) -> list[Sample]:
    """Time and memory of the compilation."""
    measurements = {
        "lower_time": ("s", compilation.lower_s),
        "compile_time": ("s", compilation.compile_s),
        "compile_cpu_time": ("s", compilation.compile_cpu_s),
        "compiler_memory": ("bytes", float(compilation.compiler_bytes)),
    }
    return [
        Sample(name=name, unit=unit, better="lower", values=[value]) for name, (unit, value) in measurements.items()
    ]


def render_environment(environment: Mapping[str, Any], place: Place, *, on_device: bool) -> dict[str, Any]:
    """The environment of this process, with the target's devices."""
    if on_device or place.cluster is None:
        return dict(environment)
    kind = f"{place.cluster.target.name} (ahead of time)"
    return {**environment, "backend": "gpu", "devices": [kind] * place.devices}


def fingerprint(module: Module) -> str:
    """A digest of the computation and its order: opcodes, shapes, edges, configurations, schedule; no names."""
    digest = hashlib.sha256()
    positions = {number: index for index, number in enumerate(module.instructions)}
    for computation in module.computations.values():
        for instruction in computation.instructions:
            edges = [positions[number] for number in instruction.operand_ids]
            digest.update(
                f"{instruction.opcode} {instruction.fusion_kind} {instruction.custom_call_target} {edges}".encode()
            )
            digest.update(instruction.shape.SerializeToString(deterministic=True) + instruction.backend_config)
    for order in module.order.values():
        digest.update(repr([positions[number] for number in order]).encode())
    return digest.hexdigest()[:32]
