"""What the dali image is for: a pipeline on the CPU, which needs no GPU."""

import pytest

from tests.docker.conftest import Runner

pytestmark = pytest.mark.docker

PIPELINE = """
import numpy as np
from nvidia.dali import fn, pipeline_def

@pipeline_def(batch_size=4, num_threads=1, device_id=None)
def images():
    return fn.flip(fn.external_source(lambda: [np.arange(12, dtype=np.uint8).reshape(2, 2, 3)] * 4, layout="HWC"))

pipe = images()
pipe.build()
print(pipe.run()[0].as_array()[0, 0, 0].tolist())
"""


def test_a_pipeline_runs_on_the_cpu(run: Runner) -> None:
    assert run("python", "-c", PIPELINE).strip() == "[3, 4, 5]"
