"""How long do least squares without negative weights take (scipy/scipy#22884)? Prints `us_per_solve=`."""

import time

import numpy as np
from scipy.optimize import nnls

random = np.random.default_rng(0)
features, target = random.random((20, 10)), random.random(20)
best = float("inf")
for _ in range(15):
    start = time.perf_counter()
    for _ in range(200):
        nnls(features, target)
    best = min(best, time.perf_counter() - start)
print(f"us_per_solve={best / 200 * 1e6:.4f}")
