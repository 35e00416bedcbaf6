from collections.abc import Iterator
from pathlib import Path

import pytest

from nightjar_ci.web.registry import Repository
from tests.ci.registries import Registry, run_registry
from tests.machine import asks


@pytest.fixture(scope="module")
@asks("registry")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with run_registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture
def repository(registry: Registry, tmp_path: Path) -> Repository:
    return Repository(f"{registry.host}/{tmp_path.name.replace('_', '-').lower()}")
