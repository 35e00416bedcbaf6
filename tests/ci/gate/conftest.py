from collections.abc import Iterator
from pathlib import Path

import pytest

from nightjar_ci.settings import read_settings
from nightjar_ci.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(read_settings({"NIGHTJAR_STATE_DIR": str(tmp_path / "state")}))
    yield opened
    opened.close()
