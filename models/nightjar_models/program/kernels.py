"""Kernels of a step by kind, which names the library and the purpose.

In: a `Module`. Out: for each kind the number of instructions, their runs in one step (loops included), bytes and flops;
the same for messages between devices, by collective and group size.

Source: openxla/xla, xla/service/gpu/cublas_cudnn.cc and ir_emission_utils.h, for custom-call targets and the kinds of
fusions in backend_config.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nightjar_models.measuring.hlo import pack_module, parse_module
from nightjar_models.program.cost import count_cost
from nightjar_models.program.module import Module, read_config, read_module
from nightjar_models.program.replica_groups import collective_kind, message_bytes, read_group

ATTENTION = "cuDNN attention"  # and its backward pass, which is named after it
_TE_MATMUL = "TransformerEngine matmul"  # in bfloat16; one of FP8 or FP4 has the same target
_SCALED = re.compile(rb"\bscaling_mode = [1-9]")
# The first matching prefix counts.
_LIBRARIES = (
    ("__cublas$lt$matmul$f8", "cuBLASLt f8"),
    ("__cublas$lt", "cuBLASLt"),
    ("__cublas$", "cuBLAS"),
    ("__cusolver$", "cuSOLVER"),
    ("__cudnn$fmha", ATTENTION),
    ("__cudnn$conv", "cuDNN convolution"),
    ("__cudnn$blockScaledDot", "cuDNN block-scaled matmul"),
    ("__cudnn$", "cuDNN other"),
    ("__gpu$xla.gpu.triton", "Pallas"),
    ("mosaic_gpu", "Pallas"),
    ("__cub$", "CUB sort"),
    ("te_gemm", _TE_MATMUL),
    ("te_dbias_quantize", "TransformerEngine quantize"),
    ("te_norm_", "TransformerEngine norm"),
    ("te_act_", "TransformerEngine activation"),
    ("te_dact_", "TransformerEngine activation"),
    ("te_fused_attn_", "TransformerEngine attention"),
    ("te_scaled_", "TransformerEngine softmax"),
    ("te_", "TransformerEngine other"),
)
_FUSIONS = {"kLoop": "loop fusion", "kInput": "input fusion", "kOutput": "output fusion", "kCustom": "custom fusion"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of a group of instructions in a step.

    Attributes:
        count: instructions.
        runs: how often they run in one step.
        bytes: moved through memory, or sent in messages.
        flops: floating-point operations.
    """

    count: int
    runs: int
    bytes: int
    flops: float


def kernel_kind(instruction: Any) -> str:
    """The kind of an instruction that runs."""
    opcode = instruction.opcode
    collective = collective_kind(instruction)
    if collective is not None:
        return collective
    if opcode == "custom-call":
        target = instruction.custom_call_target
        name = next((kind for prefix, kind in _LIBRARIES if target.startswith(prefix)), f"custom call {target}")
        if name == _TE_MATMUL and _SCALED.search(instruction.backend_config):
            return f"{name} scaled"
        if name == ATTENTION and "Backward" in target:
            return f"{name} backward"
        return name
    if opcode == "fusion":
        config = read_config(instruction).get("fusion_backend_config", {})
        kind = config.get("kind", "")
        if "gemm" in kind:
            return "Triton matmul"
        if kind.startswith("__triton"):
            return "Triton fusion"
        if kind.startswith("__cudnn"):
            return "cuDNN fusion"
        if kind == "__custom_fusion":
            return f"custom fusion {config.get('custom_fusion_config', {}).get('name', '')}".rstrip()
        return _FUSIONS.get(instruction.fusion_kind, f"fusion {instruction.fusion_kind}")
    if opcode in ("copy", "copy-start"):
        return "copy"
    return f"other {opcode}"


def tally_kernels(module: Module) -> dict[str, Work]:
    """The work of a step by kind of kernel."""
    rows: dict[str, list[tuple[int, int, float]]] = {}
    for instruction, runs in _kernels(module):
        cost = count_cost(module, instruction)
        rows.setdefault(kernel_kind(instruction), []).append((runs, runs * cost.bytes, runs * cost.flops))
    return _sum(rows)


def tally_messages(module: Module, devices: int) -> dict[str, Work]:
    """The messages of a step by collective and size of its groups, such as `all-gather/8`."""
    rows: dict[str, list[tuple[int, int, float]]] = {}
    for instruction, runs in _kernels(module):
        kind = collective_kind(instruction)
        if kind is not None:
            size = len(read_group(instruction, devices))
            amount = runs * message_bytes(module, instruction, size)
            rows.setdefault(f"{kind}/{size}", []).append((runs, amount, 0.0))
    return _sum(rows)


def _kernels(module: Module) -> Iterator[tuple[Any, int]]:
    for instruction, runs in module.executed():
        if not instruction.opcode.endswith("-done"):
            yield instruction, runs


def _sum(rows: dict[str, list[tuple[int, int, float]]]) -> dict[str, Work]:
    return {
        kind: Work(
            count=len(kind_rows),
            runs=sum(row[0] for row in kind_rows),
            bytes=sum(row[1] for row in kind_rows),
            flops=sum(row[2] for row in kind_rows),
        )
        for kind, kind_rows in sorted(rows.items())
    }


def count_flops(module: Module) -> float:
    """The operations of a module; a loop whose trips the compiler does not know counts once."""
    return sum(work.flops for work in tally_kernels(module).values())


def count_flops_on_gpu(compiled: Any) -> float | None:
    """The operations of a compiled program for GPUs; None for another platform, since XLA knows all that runs there.

    XLA's own cost analysis counts the body of a loop once, and on a GPU knows neither cuBLAS nor cuDNN.
    """
    executable: Any = compiled.runtime_executable()
    if executable.local_devices()[0].platform != "gpu":
        return None
    modules = [pack_module(parse_module(one.as_serialized_hlo_module_proto())) for one in executable.hlo_modules()]
    return sum(count_flops(read_module(module)) for module in modules)
