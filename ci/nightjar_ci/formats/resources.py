"""The machine resources that a job needs: `resources` of a matrix, the same for every executor.

In: a table of the matrix. Out: numbers that each executor translates into its own options (docs/executors.md).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, Strict

from nightjar_ci.formats.documents import StrictModel

Count = Annotated[int, Strict(), Field(ge=1)]
Size = Annotated[str, Field(pattern=r"^[1-9][0-9]*[KMGT]$", description="a size such as 512M or 16G (powers of 1024)")]
Cpus = Annotated[str, Field(pattern=r"^\d+(-\d+)?(,\d+(-\d+)?)*$", description="processor numbers such as 0-3,8")]


class Resources(StrictModel):
    """The resources of one job.

    Attributes:
        tasks_per_node: processes of the job's command on each machine; they find each other, for example by
            `jax.distributed.initialize()`.
        cpus_per_task: processors of each process; None: the executor's default.
        memory: of each machine, or None.
        shm: size of `/dev/shm` in a container; None: the executor's default.
        pinned_cpus: the only processors that the job may use, for repeatable timings; None pins nothing.
    """

    nodes: Count = 1
    tasks_per_node: Count = 1
    cpus_per_task: Count | None = None
    gpus_per_task: Annotated[int, Strict(), Field(ge=0)] = 0
    memory: Size | None = None
    shm: Size | None = None
    pinned_cpus: Cpus | None = None

    @property
    def tasks(self) -> int:
        return self.nodes * self.tasks_per_node

    @property
    def gpus_per_node(self) -> int:
        return self.gpus_per_task * self.tasks_per_node


def merge_resources(defaults: Resources, own: Resources | None) -> Resources:
    """The resources of a matrix entry: its own, and the defaults for the rest.

    >>> merge_resources(Resources(nodes=2, memory="8G"), Resources(nodes=1)).memory
    '8G'
    """
    if own is None:
        return defaults
    return defaults.model_copy(update=own.model_dump(exclude_unset=True))
