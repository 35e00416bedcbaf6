"""What all tests share: parts of the machine, golden files, kept programs, no time limit of a property.

A test has the parts that it asks for (tests/machine.py) and no others; it is skipped where this machine lacks one.
"""

import fcntl
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.cpu_limit import LIMIT_S, CpuLimit
from tests.garbage import collect_seldom
from tests.kept import ROOT, find_folder, prune, render_variables
from tests.machine import PARTS, SYSTEM, find_lack, refuse, resolve
from tests.skips import SkipBudget, read_budget
from tests.stand_ins import render_path

PATH = os.environ.get("PATH", os.defpath)
# Users have none of it: what a program has printed may still be in its buffer when it is killed or its reader goes.
os.environ.pop("PYTHONUNBUFFERED", None)
settings.register_profile("nightjar", deadline=None)
settings.load_profile("nightjar")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Rewrite the files that rendered text must equal.")
    parser.addoption(
        "--whole-machine",
        action="store_true",
        help=f"Fail where a part is lacking that `{SYSTEM}` brings, or more is skipped than tests/skips.toml says.",
    )
    parser.addoption(
        "--cpu-limit", action="store_true", help=f"Fail a test that is not slow and takes over {LIMIT_S:g} s of CPU."
    )


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell started pytest in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--cpu-limit"):
        config.pluginmanager.register(CpuLimit(), "CPU limit")
    for name, part in PARTS.items():
        config.addinivalue_line("markers", f"{name}: needs {part.what}")
    if config.getoption("--whole-machine") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SkipBudget(read_budget()), "skip budget")
    if not hasattr(config, "workerinput"):
        prune(ROOT, find_folder())


def pytest_itemcollected(item: pytest.Item) -> None:
    """Gives a test the markers of the parts that its fixtures ask for."""
    fixtures = getattr(item, "_fixtureinfo", None)
    for definitions in fixtures.name2fixturedefs.values() if fixtures is not None else ():
        for part in getattr(definitions[-1].func, "parts", ()):
            item.add_marker(part)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Hides what a test does not ask for, then skips it where a part that it asks for is lacking."""
    asked = [name for name in PARTS if item.get_closest_marker(name)]
    os.environ["PATH"] = render_path(asked, PATH)
    for part in resolve(asked):
        if (lack := find_lack(part)) is not None:
            refuse(item.config, lack, brought=PARTS[part].brought_by == SYSTEM)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    os.environ["PATH"] = PATH


@pytest.fixture(autouse=True)
def _unhide() -> Iterator[None]:
    """Ends the hiding when the fixtures of a test have ended, and before those of its module do."""
    yield
    os.environ["PATH"] = PATH


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out weekly tests unless `-m` names them; with several workers, sorts the rest for them."""
    if "weekly" not in config.getoption("markexpr"):
        weekly = [item for item in items if item.get_closest_marker("weekly")]
        items[:] = [item for item in items if not item.get_closest_marker("weekly")]
        config.hook.pytest_deselected(items=weekly)
    workers: int = getattr(config, "workerinput", {}).get("workercount", 0)
    if workers:
        items[:] = order_for_workers(items, workers)


def order_for_workers(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Puts what all wait for first, then what may take longest, then slow tests: short ones run beside them.

    xdist cuts the list into as many equal pieces as there are workers, so each piece begins with slow tests, those of a
    file together. All that waits for one text is in the first piece, so that no second worker waits.
    """
    pieces: list[list[pytest.Item]] = [[] for _ in range(workers)]
    pieces[0] += [item for item in items if "once" in item.fixturenames]  # type: ignore[attr-defined]
    others = [item for item in items if item not in set(pieces[0])]
    slow = sorted((item for item in others if item.get_closest_marker("slow")), key=_limit, reverse=True)
    for number, (_, group) in enumerate(itertools.groupby(slow, key=lambda item: item.path)):
        pieces[(number + 1) % workers] += group
    quick = iter([item for item in others if not item.get_closest_marker("slow")])
    for piece in pieces:
        piece += itertools.islice(quick, max(0, len(items) // workers - len(piece)))
    return [*itertools.chain.from_iterable(pieces), *quick]


def pytest_collection_finish() -> None:
    collect_seldom()


def _limit(item: pytest.Item) -> float:
    """How many seconds a test may take; 0 where nobody said so."""
    marker = item.get_closest_marker("timeout")
    return marker.args[0] if marker else 0.0


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[], str]], str]:
    """A text that is costly to make: one worker of a test run makes it, the others wait and read it."""
    root = _shared(tmp_path_factory)

    def get(name: str, make: Callable[[], str]) -> str:
        path = root / name
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.is_file():
                path.write_text(make())
        return path.read_text()

    return get


@pytest.fixture(scope="session")
def compiled() -> dict[str, str]:
    """Variables with which commands keep what JAX compiles, for tests that are not about compilation."""
    return render_variables()


def _shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares text with the file of that name in `golden/` beside the test; `--update-golden` writes it instead."""

    def check(name: str, text: str) -> None:
        path = request.path.parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert text == path.read_text()

    return check
