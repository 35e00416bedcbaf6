"""The machine resources that a job needs: `resources` of a matrix, the same for every executor.

In: a table of the matrix. Out: numbers that each executor translates into its own options (docs/executors.md).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, Strict

Count = Annotated[int, Strict(), Field(ge=1)]
Size = Annotated[str, Field(pattern=r"^[1-9][0-9]*[KMGT]$", description="a size such as 512M or 16G (powers of 1024)")]
Cpus = Annotated[str, Field(pattern=r"^\d+(-\d+)?(,\d+(-\d+)?)*$", description="processor numbers such as 0-3,8")]
_BYTES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Resources(BaseModel):
    """What one job needs.

    Attributes:
        nodes: machines.
        tasks_per_node: processes of the job's command on each machine; they find each other, for example by
            `jax.distributed.initialize()`.
        cpus_per_task: processors of each process; None leaves it to the place.
        gpus_per_task: GPUs of each process.
        memory: of each machine, or None.
        shm: size of `/dev/shm` in a container, or None for the place's default.
        pinned_cpus: the processors that the job runs on and no other, for timings that repeat; None pins nothing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: Count = 1
    tasks_per_node: Count = 1
    cpus_per_task: Count | None = None
    gpus_per_task: Annotated[int, Strict(), Field(ge=0)] = 0
    memory: Size | None = None
    shm: Size | None = None
    pinned_cpus: Cpus | None = None

    @property
    def tasks(self) -> int:
        """Processes of the job in all."""
        return self.nodes * self.tasks_per_node

    @property
    def gpus_per_node(self) -> int:
        """GPUs of each machine."""
        return self.gpus_per_task * self.tasks_per_node


def merge_resources(defaults: Resources, own: Resources | None) -> Resources:
    """The resources of an entry: what it says itself, and the defaults for the rest.

    >>> merge_resources(Resources(nodes=2, memory="8G"), Resources(nodes=1)).memory
    '8G'
    """
    return defaults if own is None else defaults.model_copy(update=own.model_dump(exclude_unset=True))


def read_size(text: str) -> int:
    """The bytes of a size.

    >>> read_size("2G")
    2147483648
    """
    return int(text[:-1]) * _BYTES[text[-1]]
