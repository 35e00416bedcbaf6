"""Special functions of `jax.scipy` at points where SciPy and the definition agree and JAX does not.

The expected values are written down from the definitions, so that no other library decides; one is SciPy's.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax.scipy import special, stats

from nightjar_models.canaries.entry import Canary

INF, NAN = np.float32(np.inf), np.float32(np.nan)
HUGE = np.float32(1e38)  # an ordinary float32, whose reciprocal is subnormal

CANARIES = (
    Canary(
        name="betaln_negative_integer",
        issue="jax-ml/jax#38243",
        compute=lambda: special.betaln(np.float32(-3), np.float32(2)),
        expected=-math.log(6),  # B(-3, 2) = B(2, 2)
        seen=("0.6.0", "0.10.2", "0.12.0.1"),
    ),
    Canary(
        name="betaln_subnormal_ratio",
        issue="JAXtronomy/spexial#27",
        compute=lambda: special.betaln(np.float32(2), np.float32(3e38)),
        expected=-2 * math.log(3e38),  # B(2, n) = 1 / (n (n + 1))
        seen=("0.6.0", "0.10.2", "0.12.0.1"),
    ),
    Canary(
        name="beta_infinity",
        issue="jax-ml/jax#38270",
        compute=lambda: special.beta(INF, np.float32(2)),
        expected=0.0,
        seen=("0.6.0", "0.10.2", "0.12.0.1"),
    ),
    Canary(
        name="spence_large",
        issue="jax-ml/jax#40652",
        compute=lambda: special.spence(jnp.asarray(HUGE)),
        expected=-(math.pi**2) / 6 - math.log(1e38) ** 2 / 2,  # its asymptote
        seen=("0.6.0", "0.10.2", "0.12.0.1"),
    ),
    Canary(
        name="erfcx_zero_band",
        issue="jax-ml/jax#38607",
        compute=lambda: special.erfcx(np.float32(9.3)),
        expected=0.06032075025888542,  # as SciPy has it in doubles
        seen=("0.10.2",),
        right="0.12.0.1",
    ),
    Canary(
        name="exp1_infinity",
        issue="jax-ml/jax#38519",
        compute=lambda: jnp.stack([special.exp1(INF), special.expn(2, INF), special.expi(-INF)]),
        expected=[0.0, 0.0, 0.0],
        seen=(
            "0.6.0",
            "0.10.2",
        ),
        right="0.12.0.1",
    ),
    Canary(
        name="rel_entr_nan",
        issue="jax-ml/jax#38262",
        compute=lambda: special.rel_entr(np.float32(0), NAN),
        expected=math.nan,
        seen=(
            "0.6.0",
            "0.10.2",
        ),
        right="0.12.0.1",
    ),
    Canary(
        name="kl_div_infinity",
        issue="jax-ml/jax#38239",
        compute=lambda: special.kl_div(INF, np.float32(0)),
        expected=math.inf,
        seen=(
            "0.6.0",
            "0.10.2",
        ),
        right="0.12.0.1",
    ),
    Canary(
        name="gammainc_infinite_shape",
        issue="jax-ml/jax#39107",
        compute=lambda: special.gammainc(INF, np.float32(2)),
        expected=0.0,
        seen=(
            "0.6.0",
            "0.10.2",
        ),
        right="0.12.0.1",
    ),
    Canary(
        name="gammaincc_infinite_shape",
        issue="jax-ml/jax#38272",
        compute=lambda: special.gammaincc(INF, np.float32(2)),
        expected=1.0,
        seen=(
            "0.6.0",
            "0.10.2",
        ),
        right="0.12.0.1",
    ),
    Canary(
        name="gammaln_one",
        issue="JAXtronomy/spexial#29",
        compute=lambda: special.gammaln(np.float32(1)),
        expected=0.0,
        seen=(
            "0.6.0",
            "0.10.2",
        ),
        right="0.12.0.1",
    ),
    Canary(
        name="xlog1py_nan",
        issue="jax-ml/jax#38260",
        compute=lambda: special.xlog1py(np.float32(0), NAN),
        expected=math.nan,
        seen=("0.6.0",),
        right="0.10.2",
    ),
    Canary(
        name="xlogy_nan",
        issue="jax-ml/jax#37751",
        compute=lambda: special.xlogy(np.float32(0), NAN),
        expected=math.nan,
        seen=("0.6.0",),
        right="0.10.2",
    ),
    Canary(
        name="expon_ppf_scale",
        issue="jax-ml/jax#36757",
        compute=lambda: stats.expon.ppf(0.4, scale=0.5),
        expected=-0.5 * math.log(0.6),
        seen=("0.6.0",),
        right="0.10.2",
    ),
)
