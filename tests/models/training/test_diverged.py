from pathlib import Path

import pytest

from nightjar_models.parallel.mesh import MeshShape
from nightjar_models.presets.config import override
from nightjar_models.presets.tiny import gpt_tiny
from nightjar_models.training.train import train
from tests.models.conftest import SMALL


@pytest.mark.slow
def test_a_diverging_run_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    config = override(gpt_tiny(), [*SMALL, "steps=12", "learning_rate=1e30"])
    run = train(config, seed=0, mesh=MeshShape(), out=tmp_path, checkpoint_every=1)
    assert run.status == "diverged"
    kept = [int(path.name) for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit()]
    assert max(kept) == run.curves[0].steps[-1]  # the state before the step that failed
