"""What eight devices compute is what one computes, by the collectives that were meant.

All numbers come from one process (`eight_devices.py`), since eight virtual devices are settled when JAX starts.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.models.conftest import QUICK_FLAGS, keep_isa
from tests.places import ROOT

# float32 sums of at most 24 products in another order; 4.6e-7 of the largest value was the most that was seen
TOLERANCE = 5e-6


@pytest.fixture(scope="module")
def answer(once: Callable[[str, Callable[[], str]], str]) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess((), **json.loads(once("eight_devices.json", compute_all)))


def compute_all() -> str:
    flags = f"--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=1 {QUICK_FLAGS}"
    environment = {**os.environ, **keep_isa(flags), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.models.parallel.eight_devices"]
    root = ROOT
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    return json.dumps({"returncode": done.returncode, "stdout": done.stdout, "stderr": done.stderr})


@pytest.fixture(scope="module")
def eight(answer: subprocess.CompletedProcess[str]) -> Any:
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


@pytest.mark.slow
def test_ring_attention_equals_attention_and_gathers_no_keys(eight: Any) -> None:
    ring = eight["ring"]
    assert max(ring["causal"], ring["full"]) < TOLERANCE
    assert ring["collectives"]["collective-permute"]["count"] >= 6  # three turns of keys and of values
    assert "all-gather" not in ring["collectives"]


@pytest.mark.slow
def test_a_pipeline_of_four_stages_equals_the_layers_in_turn(eight: Any) -> None:
    assert eight["pipeline"]["difference"] < TOLERANCE
    assert "collective-permute" in eight["pipeline"]["collectives"]


@pytest.mark.slow
def test_collective_matrix_products_equal_plain_ones_and_gather_nothing(eight: Any) -> None:
    assert max(eight["matmul"]["gather"], eight["matmul"]["scatter"]) < TOLERANCE
    for collectives in eight["matmul"]["collectives"]:
        assert collectives["collective-permute"]["count"] == 14  # seven forwards, seven backwards
        assert not {"all-gather", "reduce-scatter"} & collectives.keys()


@pytest.mark.slow
def test_a_broadcast_sends_one_value_to_all_and_says_how(eight: Any, answer: subprocess.CompletedProcess[str]) -> None:
    assert eight["broadcast"] == {"values": [5.0] * 8, "flags": [True] * 8}  # a NaN elsewhere does not spread
    assert "collective broadcast over tensor: all-reduce of masked values" in answer.stderr


@pytest.mark.compiler
@pytest.mark.slow
def test_rms_norm_gathers_nothing_where_rows_are_split(eight: Any) -> None:
    rows, width = eight["rms_norm"]["rows"], eight["rms_norm"]["width"]
    assert max(rows["difference"], width["difference"]) < TOLERANCE
    assert rows["calls"]["nightjar_rms_norm_forward"] == rows["calls"]["nightjar_rms_norm_backward"] == 1
    assert rows["collectives"].keys() == {"all-reduce"}  # the loss, and the gradient of the scale
    assert "all-gather" in width["collectives"]
