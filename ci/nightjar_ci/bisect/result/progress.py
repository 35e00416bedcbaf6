"""The progress display of a bisection on stderr.

It prints one line per probe. On a terminal, a status line below shows the running tests; elsewhere those lines are
printed too.
"""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from nightjar_ci.bisect.result.report import show_result
from nightjar_ci.bisect.state import Probe
from nightjar_ci.report.html import show_duration
from nightjar_ci.untrusted.console import open_console


class Progress:
    """Shows the progress of a bisection; use it as a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or open_console(stderr=True, highlight=False, soft_wrap=True)
        self._status: Status | None = None
        self.probes = 0
        self._last = ""

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
        if kind is KeyboardInterrupt:
            self._console.print("interrupted; the same command goes on from here")

    def say(self, line: str) -> None:
        if self._status is not None:
            self._status.update(escape(line[: max(20, self._console.width - 4)]))
        elif line != self._last:
            self._last = line
            self._console.print(line, markup=False)

    def on_probe(self, probe: Probe) -> None:
        self.probes += 1
        build = f"build {show_duration(probe.build_s)}, " if probe.build_s else ""
        line = f"[{self.probes}] {probe.name}: {show_result(probe)} ({build}test {show_duration(probe.test_s)})"
        self._console.print(line, markup=False)
