"""Launch configurations of GPU kernels.

In: one row per launch: its kernel, duration, grid, block, registers and shared memory, and the occupancy if the trace
records it. Out: the table `kernels`, one row per configuration. Occupancy is the highest share of a multiprocessor's
warps that may be resident: by the limits of the device on warps, blocks, registers and shared memory.

Source: CUDA C++ Programming Guide, "Compute Capabilities"; registers are rounded as in CUDA's occupancy calculator (256
registers a warp).
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from nightjar_profiling.capture_folder.tables import SCHEMAS

CONFIGURATION = ("rank", "device", "kernel", "grid", "block", "registers", "shared_bytes")
WARP_THREADS = 32
REGISTERS_AT_ONCE = 256
SCHEDULERS = 4  # of a multiprocessor; each has its share of the registers
RESERVED_SHARED_BYTES = 1024  # of each block, by the system, from compute capability 8.0 on
# Names of kernels that multiply on tensor cores: instructions of PTX (hmma, wgmma), tile shapes of cuBLAS and cuDNN
# (s16816gemm, tensor16x8x16), CUTLASS's tensorop, cuBLAS's nvjet.
TENSOR_CORE_NAMES = (
    r"(?i)[hiqg]mma|tensorop|tensor\d+x\d+x\d+|_[a-z]?(?:884|1688|16816|16832|161616)[a-z]*_?(?:gemm|fprop|dgrad|wgrad)"
    r"|xmma_gemm_(?:bf16|f16|e4m3|tf32)|^nvjet|flash_(?:fwd|bwd)_kernel"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiprocessor:
    """The limits of a GPU's multiprocessor."""

    warps: int
    blocks: int
    registers: int
    shared_bytes: int


def find_occupancy(
    block_threads: int, registers: int, shared_bytes: int, limits: Multiprocessor, reserved: int = RESERVED_SHARED_BYTES
) -> float:
    """The highest share of a multiprocessor's warps that a kernel can occupy.

    Args:
        shared_bytes: of a block, static and dynamic.
        reserved: shared memory that the system takes for each block.

    >>> h100 = Multiprocessor(warps=64, blocks=32, registers=65536, shared_bytes=233472)
    >>> find_occupancy(64, 182, 8192, h100), find_occupancy(128, 32, 1056, h100)
    (0.125, 1.0)
    """
    warps = -(-block_threads // WARP_THREADS)
    if not warps:
        return 0.0
    fits = [limits.blocks, limits.warps // warps]
    if registers:
        warp_registers = -(-registers * WARP_THREADS // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE
        fits.append(limits.registers // warp_registers // SCHEDULERS * SCHEDULERS // warps)
    if shared_bytes + reserved:
        fits.append(limits.shared_bytes // (shared_bytes + reserved))
    return min(fits) * warps / limits.warps


def summarise_kernels(launches: pl.DataFrame) -> pl.DataFrame:
    """The table `kernels`."""
    uses = pl.when(pl.col("kernel").str.contains(TENSOR_CORE_NAMES)).then(statement=True)
    table = (
        launches.group_by(CONFIGURATION, maintain_order=True)
        .agg(
            launches=pl.len(),
            duration_ns=pl.col("duration_ns").sum(),
            occupancy=pl.col("occupancy").drop_nulls().first(),
        )
        .with_columns(tensor_cores=uses)
        .sort("duration_ns", descending=True, maintain_order=True)
    )
    return table.select(pl.col(name).cast(kind) for name, kind in SCHEMAS["kernels"].items())
