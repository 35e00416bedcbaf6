"""How long does a small linear program take (scipy/scipy#22655)? Prints `ms_per_solve=`; a regression by quantiles."""

import time

import numpy as np
from scipy.optimize import linprog

ROWS, COLUMNS, QUANTILE = 300, 8, 0.9
random = np.random.default_rng(0)
features = random.normal(size=(ROWS, COLUMNS))
target = features @ random.normal(size=COLUMNS) + random.normal(size=ROWS)
costs = np.concatenate([np.zeros(2 * COLUMNS), np.full(ROWS, QUANTILE), np.full(ROWS, 1 - QUANTILE)])
equations = np.hstack([features, -features, np.eye(ROWS), -np.eye(ROWS)])
best = float("inf")
for _ in range(5):
    start = time.perf_counter()
    linprog(costs, A_eq=equations, b_eq=target, bounds=(0, None), method="highs")
    best = min(best, time.perf_counter() - start)
print(f"ms_per_solve={best * 1e3:.4f}")
