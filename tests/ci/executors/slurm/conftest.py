import pytest

from tests.ci.executors.slurm.lab import Lab


@pytest.fixture
def lab(cluster: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    return cluster
