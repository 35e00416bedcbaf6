"""What must somebody know before the GPUs of a training talk to each other? One check of the doctor, at its start.

NCCL ends a process with a bus error where /dev/shm is full, and says nothing of the reason: afterwards is too late.
"""

from __future__ import annotations

import sys

from nightjar_models.doctor import gather
from nightjar_models.doctor.checks import find_small_shm


def warn_before_nccl(devices: int, backend: str) -> None:
    """Says on stderr that /dev/shm is too small, where several GPUs will use NCCL.

    Args:
        devices: of the mesh, on all machines.
        backend: what JAX computes on, such as `gpu`.
    """
    if devices < 2 or backend not in ("gpu", "cuda"):
        return
    finding = find_small_shm(gather.read_shm_bytes(gather.SHARED_MEMORY), container=gather.is_container())
    if finding is not None:
        print(f"warning: {finding.found}.\nHint: {finding.fix}", file=sys.stderr, flush=True)
