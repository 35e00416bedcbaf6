"""Fixtures of the CI tests: a store and a real PostgreSQL server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nightjar_ci.settings import Settings, read_settings
from nightjar_ci.store import Store, open_store
from tests.ci.postgres import find_programs, running_postgres
from tests.machine import asks


@pytest.fixture
@asks("postgres")
def postgres() -> Iterator[str]:
    with running_postgres(find_programs()) as url:
        yield url


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path / "state")})


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    opened = open_store(settings)
    yield opened
    opened.close()
