"""NumPyro cell: NUTS samples the posterior that linear algebra gives exactly.

A linear regression on real data (442 patients, 10 measurements, disease progression after a year) with unit normal
priors and known noise: its posterior is normal, with covariance S = (X'X / s^2 + I)^-1 and mean S X'y / s^2.

Source: Efron, Hastie, Johnstone and Tibshirani 2004, "Least Angle Regression" (the data set, shipped by scikit-learn).
"""

from __future__ import annotations

from nightjar_models.ecosystem.cell import Check, Finding
from nightjar_models.measuring.result import Sample

WARMUP, DRAWS, CHAINS = 300, 1000, 4
NOISE = 0.7


def run() -> Finding:
    """Runs the cell."""
    import time

    import jax
    import jax.numpy as jnp
    import numpy as np
    import numpyro
    import numpyro.distributions as dist
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
    from sklearn.datasets import load_diabetes

    features, target = load_diabetes(return_X_y=True)
    x = (features - features.mean(axis=0)) / features.std(axis=0)
    y = (target - target.mean()) / target.std()
    covariance = np.linalg.inv(x.T @ x / NOISE**2 + np.eye(x.shape[1]))
    mean, spread = covariance @ x.T @ y / NOISE**2, np.sqrt(np.diag(covariance))

    def model(x, y):
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
        numpyro.sample("y", dist.Normal(x @ weights, NOISE), obs=y)

    sampler = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model, dense_mass=True), num_warmup=WARMUP, num_samples=DRAWS, progress_bar=False
    )

    @jax.jit  # without it NumPyro 0.22 compiles its loop in every run, and a hundred programs before the first
    def draw(key):
        sampler.run(key, jnp.asarray(x), jnp.asarray(y))
        return sampler.get_samples()["weights"]

    times, chains = [], []
    for seed in range(1 + CHAINS):
        begin = time.perf_counter()
        chains.append(np.asarray(draw(jax.random.key(seed)), np.float64))
        times.append(time.perf_counter() - begin)
    first, *steady = times
    by_chain = np.stack(chains[1:])
    draws = np.concatenate(by_chain)
    effective = float(np.min(effective_sample_size(by_chain)))
    return Finding(
        checks=[
            Check(
                name="posterior_mean_error",
                value=float(np.abs((draws.mean(axis=0) - mean) / spread).max()),
                expected=0.0,
                tolerance=0.1,
                why="in posterior standard deviations, largest of 10; Monte Carlo error is 0.013 of one",
            ),
            Check(
                name="posterior_spread_ratio",
                value=float((draws.std(axis=0) / spread).mean()),
                expected=1.0,
                tolerance=0.1,
                why="mean over 10 weights",
            ),
            Check(
                name="split_r_hat",
                value=float(np.max(split_gelman_rubin(by_chain))),
                expected=1.0,
                tolerance=0.03,
                why="both halves of every chain agree",
            ),
        ],
        samples=[
            Sample(name="first_call_time", unit="s", better="lower", values=[first]),
            Sample(name="step_time", unit="s", better="lower", values=[one / (WARMUP + DRAWS) for one in steady]),
            Sample(name="throughput", unit="effective samples/s", better="higher", values=[effective / sum(steady)]),
        ],
    )
