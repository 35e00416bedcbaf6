"""What all tests share: golden files; slow tests begin first; no property has a time limit: busy machines fail none."""

from __future__ import annotations

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
    """Lets each worker begin with its share of the slow tests, so that none is alone with them at the end."""
    slow = [item for item in items if item.get_closest_marker("slow") is not None]
    others = [item for item in items if item.get_closest_marker("slow") is None]
    items.clear()
    for left in range(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")), 0, -1):
        share, size = len(slow) // left, (len(slow) + len(others)) // left  # as worksteal cuts the list
        items += [*slow[:share], *others[: size - share]]
        slow, others = slow[share:], others[size - share :]


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
