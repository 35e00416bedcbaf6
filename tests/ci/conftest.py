"""Fixtures of the CI tests: a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ci.postgres import find_programs, running_postgres


@pytest.fixture
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server of its own."""
    programs = find_programs()
    if programs is None:
        pytest.skip("no initdb and pg_ctl, or no psycopg: apt-get install postgresql")
    with running_postgres(programs) as url:
        yield url
