"""The rank of a process in a multi-process job, and the folder of its capture.

In: the environment. Out: the rank that the launcher gave, or None if this is the only process. Each rank's capture is a
folder of its own below the one that was asked for, so that ranks on a shared file system do not collide.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

LAUNCHERS = (
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("JAX_PROCESS_ID", "JAX_NUM_PROCESSES"),
)
"""Variables of a launcher: this process, and how many there are. Inside `sbatch` but outside `srun`, Slurm sets a rank
and no number of tasks of a step: that is one process."""


def find_rank(environ: Mapping[str, str]) -> int | None:
    """The rank of this process in a job of several.

    >>> find_rank({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"})
    3
    >>> find_rank({"SLURM_PROCID": "0"}), find_rank({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"})
    (None, None)
    >>> find_rank({"JAX_PROCESS_ID": "0"})
    0
    """
    for rank, size in LAUNCHERS:
        if environ.get(rank, "").isdecimal() and environ.get(size, "").isdecimal() and int(environ[size]) > 1:
            return int(environ[rank])
    own = environ.get("JAX_PROCESS_ID", "")  # only who starts several processes sets it, with or without their number
    if own.isdecimal() and "JAX_NUM_PROCESSES" not in environ:
        return int(own)
    return None


def rank_folder(out: Path, rank: int | None) -> Path:
    """The capture folder of a rank.

    >>> rank_folder(Path("capture"), 12), rank_folder(Path("capture"), None)
    (PosixPath('capture/rank0012'), PosixPath('capture'))
    """
    if rank is None:
        return out
    return out / f"rank{rank:04}"


def find_rank_folders(folder: Path) -> list[Path]:
    """The captures of the ranks that `rank_folder` put below a folder, in order; none if it is a capture itself."""
    if (folder / "manifest.json").is_file():
        return []
    folders = [path.parent for path in folder.glob("rank*/manifest.json") if path.parent.name[4:].isdecimal()]
    return sorted(folders, key=lambda path: int(path.name[4:]))
