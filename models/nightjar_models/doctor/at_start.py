"""Warning about a small /dev/shm at the start of a training on several GPUs.

NCCL ends a process with a bus error if /dev/shm is full and gives no reason, so the warning must come first.
"""

from __future__ import annotations

import sys

from nightjar_models.doctor import gather
from nightjar_models.doctor.checks import find_small_shm


def warn_before_nccl(devices: int, backend: str) -> None:
    """Prints a warning to stderr if several GPUs will use NCCL and /dev/shm is too small.

    Args:
        devices: of the mesh, on all machines.
        backend: JAX's backend, such as `gpu`.
    """
    if devices < 2 or backend not in ("gpu", "cuda"):
        return
    finding = find_small_shm(gather.read_shm_bytes(gather.SHARED_MEMORY), container=gather.is_container())
    if finding is not None:
        print(f"warning: {finding.found}.\nHint: {finding.fix}", file=sys.stderr, flush=True)
