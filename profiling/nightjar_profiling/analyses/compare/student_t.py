"""Student's t: its upper tail and quantiles.

Source: NIST Digital Library of Mathematical Functions, 8.17(v), for the continued fraction of the incomplete beta
function; Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.5.27, for the tail by it.
"""

from __future__ import annotations

import math
from functools import cache

_TINY = 1e-300  # stands for a zero in a denominator of Lentz's method
_PRECISION = 1e-15


def t_tail(value: float, degrees: float) -> float:
    """The probability that Student's t with that many degrees of freedom exceeds `value`.

    >>> round(t_tail(2.0, 1), 6), t_tail(0.0, 5), t_tail(float("inf"), 3)
    (0.147584, 0.5, 0.0)
    """
    if value < 0:
        return 1.0 - t_tail(-value, degrees)
    square = value * value
    x, rest = degrees / (degrees + square), square / (degrees + square)
    if x == 0.0 or math.isnan(x):
        return x
    if rest == 0.0:
        return 0.5
    return 0.5 * _incomplete_beta(x, rest, degrees / 2)


@cache
def t_quantile(upper_tail: float, degrees: float) -> float:
    """The value that Student's t with that many degrees of freedom exceeds with probability `upper_tail` < 1.

    >>> round(t_quantile(0.025, 10), 6), round(t_quantile(0.975, 10), 6)
    (2.228139, -2.228139)
    """
    if upper_tail > 0.5:
        return -t_quantile(1.0 - upper_tail, degrees)
    if upper_tail <= 0.0:
        return math.inf
    low, high = 0.0, 1.0
    while t_tail(high, degrees) > upper_tail:
        low, high = high, 2 * high
    scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - 0.5 * math.log(degrees * math.pi)
    value = high
    while high - low > _PRECISION * high:
        tail = t_tail(value, degrees)
        if tail > upper_tail:
            low = value
        else:
            high = value
        density = math.exp(scale - (degrees + 1) / 2 * math.log1p(value * value / degrees))
        step = tail * math.log(tail / upper_tail) / density if tail > 0 else math.inf  # Newton's, on the tail's log
        following = value + step
        if not low < following < high:
            following = (low + high) / 2
        if abs(following - value) <= _PRECISION * value:
            return following
        value = following
    return value


def _incomplete_beta(x: float, rest: float, a: float) -> float:
    """The regularised incomplete beta function I_x(a, 1/2), `rest` being 1 - x; neither is 0."""
    log_front = math.lgamma(a + 0.5) - math.lgamma(a) - math.lgamma(0.5) + a * math.log(x) + 0.5 * math.log(rest)
    if x < (a + 1) / (a + 2.5):
        return math.exp(log_front) * _continued_fraction(x, a, 0.5) / a
    return 1.0 - math.exp(log_front) * _continued_fraction(rest, 0.5, a) / 0.5


def _continued_fraction(x: float, a: float, b: float) -> float:
    """The fraction of DLMF 8.17.22 by Lentz's method, as Press et al., Numerical Recipes, 6.4, write it."""
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1.0) or _TINY)
    fraction, m = d, 0
    while True:
        m += 1
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / (1.0 + term * d or _TINY)
            c = 1.0 + term / c or _TINY
            fraction *= d * c
        if abs(d * c - 1.0) < _PRECISION:
            return fraction
