"""A limit of CPU time: with `--cpu-limit`, a test that is not marked `slow` fails where its call takes more.

Counted is the call, in this process and in those that it started and waited for; wall time would count other work of
the machine, and setup the fixtures that other tests use, too. Seconds of a busy virtual processor are longer than those
of a quiet one, and the first run on a machine compiles what later ones find, hence the margin.
"""

import resource
from collections.abc import Iterator

import pytest

LIMIT_S = 2.0
# A test was seen to take 2.5 times as many seconds on a busy host, and twice as many with nothing compiled.
MARGIN = 5


def read_cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


class CpuLimit:
    """The plugin: fails a test when its call has ended."""

    def __init__(self, limit_s: float = LIMIT_S * MARGIN) -> None:
        self.limit_s = limit_s

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Fails a test over the limit; one that fails by itself says why."""
        started_s = read_cpu_s()
        yield
        used_s = read_cpu_s() - started_s
        if not item.get_closest_marker("slow"):
            item.user_properties.append(("cpu_s", round(used_s, 1)))
        if used_s > self.limit_s and not item.get_closest_marker("slow"):
            hint = "make it faster, or mark it slow"
            pytest.fail(f"{used_s:.1f} s of CPU time, expected at most {LIMIT_S:g}. Hint: {hint}", pytrace=False)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Lists the tests that come nearest to the limit: on a slower machine they are over it."""
        reports = [each for each in terminalreporter.getreports("passed") if each.when == "call"]
        seconds = {each.nodeid: float(str(dict(each.user_properties).get("cpu_s", 0))) for each in reports}
        near = sorted((used_s, name) for name, used_s in seconds.items() if used_s > LIMIT_S)
        if near:
            terminalreporter.section(f"over {LIMIT_S:g} s of CPU time, not marked slow", sep="=")
        for used_s, name in reversed(near):
            terminalreporter.line(f"{used_s:6.1f} s  {name}")
