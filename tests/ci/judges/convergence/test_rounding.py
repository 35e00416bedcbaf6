"""The limit of rounding: ten times any replica, or the prediction limit of one more, whichever is larger."""

import math

import numpy as np
import pytest
from scipy import stats

from nightjar_ci.judges.convergence.same_seed import find_rounding


def test_the_limit_is_the_prediction_limit_of_log_normal_replicas() -> None:
    shifts = np.array([[1e-4], [-1e-3], [1e-2], [-1e-1], [1.0]])  # far apart: the prediction decides
    logs = np.log(np.abs(shifts[:, 0]))
    expected = math.exp(logs.mean() + stats.t(4).isf(1e-3) * math.sqrt(1 + 1 / 5) * logs.std(ddof=1))
    assert find_rounding(shifts)[0] == pytest.approx(expected)


def test_the_limit_is_ten_times_the_largest_of_replicas_that_agree() -> None:
    assert find_rounding(np.full((5, 1), -0.02))[0] == pytest.approx(0.2)


def test_what_float32_cannot_tell_is_always_rounding() -> None:
    assert find_rounding(np.zeros((5, 3))).tolist() == pytest.approx([1e-6] * 3)
    assert find_rounding(np.zeros((5, 3)), "bf16").tolist() == pytest.approx([3e-5] * 3)


def test_the_limit_stays_where_a_replica_comes_back() -> None:
    shifts = np.tile([0.001, 0.01, 0.002], (6, 1))
    assert find_rounding(shifts).tolist() == pytest.approx([0.01, 0.1, 0.1])
