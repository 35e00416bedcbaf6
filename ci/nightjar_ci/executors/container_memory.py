"""Peak memory of a container: that of its largest process, as for every other job.

In: the name of a running container. Out: the largest VmHWM of its processes. The kernel keeps it for each process;
polling it misses only growth in the last moment of a process. None where the engine runs on another machine, whose
processes are not in our /proc.

Source: proc(5).
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path

_INSPECT_EVERY_S, _POLL_EVERY_S = 0.5, 0.2


class ContainerMemory:
    """Polls the processes of one container, at most every 0.2 s."""

    def __init__(self, name: str) -> None:
        self.peak_rss_bytes: int | None = None
        self._name, self._root_pid, self._next_poll = name, 0, 0.0

    def poll(self) -> None:
        """Reads the peaks, unless the last poll was too recent."""
        if time.monotonic() < self._next_poll:
            return
        if not self._root_pid:
            self._root_pid = self._find_root_pid()
        if self._root_pid:
            peak = max((_peak_of(pid) for pid in _descendants(self._root_pid)), default=0)
            if peak:
                self.peak_rss_bytes = max(peak, self.peak_rss_bytes or 0)
        self._next_poll = time.monotonic() + (_POLL_EVERY_S if self._root_pid else _INSPECT_EVERY_S)

    def _find_root_pid(self) -> int:
        """The container's first process on this machine; 0 where there is none (yet)."""
        command = ("docker", "inspect", "--format", "{{.State.Pid}} {{.Id}}", self._name)
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
            answer = subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=10, stdin=subprocess.DEVNULL
            ).stdout
            pid, container = answer.split()
            if container in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8"):
                return int(pid)
        return 0


def _descendants(root_pid: int) -> list[int]:
    pids = [root_pid]
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids += map(int, (task / "children").read_text(encoding="ascii").split())
    return pids


def _peak_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
