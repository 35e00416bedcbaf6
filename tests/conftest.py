"""What all tests share: golden files; the slowest begin first; no property has a time limit (busy machines)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable

import pytest
from hypothesis import settings

settings.register_profile("nightjar", deadline=None)
settings.load_profile("nightjar")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Rewrite the files that rendered text must equal.")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts what all wait for first, then what may take longest, then slow tests: short ones run beside them."""

    def place(item: pytest.Item) -> tuple[bool, float, bool]:
        waited_for = "once" in item.fixturenames  # type: ignore[attr-defined]
        limit = item.get_closest_marker("timeout")
        return not waited_for, -limit.args[0] if limit else 0.0, item.get_closest_marker("slow") is None

    items.sort(key=place)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[], str]], str]:
    """A text that is costly to make: one worker of a test run makes it, the others wait and read it."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def get(name: str, make: Callable[[], str]) -> str:
        path = root / name
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.is_file():
                path.write_text(make())
        return path.read_text()

    return get


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
