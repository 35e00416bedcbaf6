"""Fixtures of the CI tests: a real PostgreSQL server."""

from collections.abc import Iterator

import pytest

from tests.ci.postgres import find_programs, running_postgres
from tests.machine import asks


@pytest.fixture
@asks("postgres")
def postgres() -> Iterator[str]:
    with running_postgres(find_programs()) as url:
        yield url
