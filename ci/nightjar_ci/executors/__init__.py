"""Where can a job run? The one table of executors; a matrix names them by its keys."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nightjar_ci.executors.base import Executor, OnLine
from nightjar_ci.executors.docker import DockerExecutor
from nightjar_ci.executors.local import LocalExecutor

__all__ = ["EXECUTORS", "Executor", "OnLine"]

EXECUTORS: Mapping[str, Executor] = MappingProxyType({"local": LocalExecutor(), "docker": DockerExecutor()})
