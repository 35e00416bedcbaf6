"""Limit of the drift that rounding causes between two trainings of one program with one seed.

In: for several seeds, the difference between a training and its replica, whose sums run in another order. Out: for each
step, the largest difference that still counts as rounding. docs/statistics.md, "The same seed", derives it.
"""

from __future__ import annotations

import math

import numpy as np

from nightjar_ci.judges.array import Array
from nightjar_ci.judges.student_t import t_quantile

LEAST_REPLICAS = 5
# The least limit by the type that a program computes in. Losses are float32: eight units in the last place. In
# bfloat16 another vector width moved the first loss by 7e-7 to 2.8e-6 (docs/statistics.md, "Processors"), while
# replicas on one processor, whose parameters are float32, left it as it was.
LEAST = {"f32": 1e-6, "bf16": 3e-5}
FACTOR = 10.0  # a change of cores, meshes or fusions reorders more sums than the replicas do
TAIL = 1e-3


def find_rounding(shifts: Array, dtype: str = "f32") -> Array:
    """The largest difference per step that rounding explains; it never decreases, as rounding grows with the steps.

    It is the larger of ten times the largest difference of any replica, and the upper prediction limit (0.1 %) for
    one more replica, whose largest difference so far is modelled as log-normal.

    Args:
        shifts: difference of each replica from its own seed on the judge's scale, shape (replicas, steps), with at
            least `LEAST_REPLICAS` replicas.

    Returns: shape (steps,).
    """
    count = len(shifts)
    sizes = np.maximum(np.maximum.accumulate(np.abs(shifts), axis=1), LEAST.get(dtype, LEAST["f32"]) / FACTOR)
    logs = np.log(sizes)
    width = t_quantile(TAIL, count - 1) * math.sqrt(1 + 1 / count)
    predicted = np.exp(logs.mean(axis=0) + width * logs.std(axis=0, ddof=1))
    limits: Array = np.maximum.accumulate(np.maximum(FACTOR * sizes.max(axis=0), predicted))
    return limits
