"""How much memory did a container take at its peak? That of its largest process, as for every other job.

In: the name of a running container. Out: the largest VmHWM of its processes, which the kernel keeps for each of them;
looked at while they run, so that only what a process gained in the last moment before its end can be missed. None where
the engine is another machine's: its processes are not in our /proc.

Source: proc(5).
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path

_ASK_EVERY_S, _LOOK_EVERY_S = 0.5, 0.2


class ContainerMemory:
    """Looks at the processes of one container, each time `look` is called and it is time to."""

    def __init__(self, name: str) -> None:
        self.peak_rss_bytes: int | None = None
        self._name, self._first, self._next = name, 0, 0.0

    def look(self) -> None:
        """Takes a look, if the last one is long enough ago."""
        if time.monotonic() < self._next:
            return
        if not self._first:
            self._first = self._find_first()
        if self._first:
            peak = max((_peak_of(pid) for pid in _descendants(self._first)), default=0)
            if peak:
                self.peak_rss_bytes = max(peak, self.peak_rss_bytes or 0)
        self._next = time.monotonic() + (_LOOK_EVERY_S if self._first else _ASK_EVERY_S)

    def _find_first(self) -> int:
        """The first process of the container, on this machine; 0 where there is none (yet)."""
        command = ("docker", "inspect", "--format", "{{.State.Pid}} {{.Id}}", self._name)
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
            answer = subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=10, stdin=subprocess.DEVNULL
            ).stdout
            pid, container = answer.split()
            if container in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8"):
                return int(pid)
        return 0


def _descendants(first: int) -> list[int]:
    found = [first]
    for pid in found:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += map(int, (task / "children").read_text(encoding="ascii").split())
    return found


def _peak_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
