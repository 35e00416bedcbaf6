"""Executors: local processes, containers, Slurm, Kubernetes. A matrix names them by the keys of one table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nightjar_ci.executors.base import BatchExecutor, Executor, OnLine, Task
from nightjar_ci.executors.docker import DockerExecutor
from nightjar_ci.executors.kubectl import KubernetesExecutor
from nightjar_ci.executors.local import LocalExecutor
from nightjar_ci.executors.slurm.executor import SlurmExecutor

__all__ = ["EXECUTORS", "BatchExecutor", "Executor", "OnLine", "Task"]

EXECUTORS: Mapping[str, Executor] = MappingProxyType(
    {"local": LocalExecutor(), "docker": DockerExecutor(), "slurm": SlurmExecutor(), "kubernetes": KubernetesExecutor()}
)
