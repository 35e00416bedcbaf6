"""What do nightly step times look like? Seeded series of eleven kinds of noise, and re-runs of one night.

In: a kind, a number of series and nights. Out: log values, without a level; a step is added by whoever wants one. All
noise is between runs: a value is the median step time of one night's run.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rng = np.random.Generator

CLEAN = ("normal 0.2 %", "normal 0.5 %", "normal 1 %", "normal 2 %", "normal 5 %")
DIRTY = ("outliers", "heteroscedastic", "AR(1)", "drift", "bimodal", "spikes")
NOISES = CLEAN + DIRTY
SMALL, LARGE = 0.005, 0.03  # standard deviations of the two states of heteroscedastic noise
PHI = 0.6


def draw_nights(kind: str, series: int, nights: int, rng: Rng) -> Array:
    shape = (series, nights)
    noise: Array = rng.normal(0.0, 1.0, shape)
    if kind in CLEAN:
        noise *= float(kind.split()[1]) / 100
    elif kind == "outliers":  # three nights in a hundred are 10 to 50 % slower
        noise = 0.02 * noise + (rng.random(shape) < 0.03) * np.log1p(rng.uniform(0.1, 0.5, shape))
    elif kind == "heteroscedastic":  # quiet and loud times of twenty nights on average
        noise *= np.where(np.cumsum(rng.random(shape) < 1 / 20, axis=1) % 2 == 0, SMALL, LARGE)
    elif kind == "AR(1)":  # each night resembles the one before
        noise *= 0.01
        for night in range(1, nights):
            noise[:, night] = PHI * noise[:, night - 1] + (1 - PHI**2) ** 0.5 * noise[:, night]
    elif kind == "drift":  # 1 % in a hundred nights, of a machine that ages
        noise = 0.01 * noise + 1e-4 * np.arange(nights)
    elif kind == "bimodal":  # three nights in ten on a machine that is 4 % slower
        noise = 0.005 * noise + np.log1p(0.04) * (rng.random(shape) < 0.3)
    elif kind == "spikes":  # two nights in a hundred are 20 to 100 % slower
        noise = 0.01 * noise + (rng.random(shape) < 0.02) * np.log1p(rng.uniform(0.2, 1.0, shape))
    else:
        raise ValueError(f"unknown noise {kind!r}")
    return noise


def draw_pairs(kind: str, cases: int, pairs: int, rng: Rng) -> Array:
    """Log ratios of two interleaved runs of the same program in one night, shape (cases, pairs)."""
    if kind in ("AR(1)", "drift"):  # what the two share in a night cancels; the rest is taken to be the full 1 %
        sides = rng.normal(0.0, 0.01, (2, cases, pairs))
    elif kind == "heteroscedastic":  # a session is quiet or loud as a whole
        sides = rng.normal(0.0, 1.0, (2, cases, pairs)) * rng.choice([SMALL, LARGE], (cases, 1))
    else:
        sides = draw_nights(kind, 2 * cases, pairs, rng).reshape(2, cases, pairs)
    return np.asarray(sides[0] - sides[1], dtype=np.float64)
