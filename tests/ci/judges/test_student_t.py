import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtr, stdtrit

from nightjar_ci.judges import student_t as of_ci
from nightjar_ci.judges.student_t import t_quantile, t_tail
from nightjar_profiling.analyses.compare import student_t as of_profiling

DEGREES = st.one_of(st.integers(1, 200), st.floats(0.5, 1000))


@given(st.floats(0.1, 1e6), DEGREES)
def test_the_tail_is_that_of_scipy_however_small(value: float, degrees: float) -> None:
    expected = float(stdtr(degrees, -value))
    assert t_tail(value, degrees) == pytest.approx(expected, rel=1e-9, abs=1e-300)
    assert t_tail(-value, degrees) == pytest.approx(1 - expected, rel=1e-12)


@given(st.floats(1e-12, 0.499), DEGREES)
def test_the_quantile_is_that_of_scipy(tail: float, degrees: float) -> None:
    assert t_quantile(tail, degrees) == pytest.approx(-float(stdtrit(degrees, tail)), rel=1e-9)
    assert t_quantile(1 - tail, degrees) == pytest.approx(-t_quantile(tail, degrees), rel=1e-3)


@pytest.mark.parametrize("degrees", [1, 2.5, 1000])
def test_the_ends_of_the_line_have_their_limits(degrees: float) -> None:
    assert [t_tail(value, degrees) for value in (-math.inf, 0.0, 1e-200, 1e200, math.inf)] == [1.0, 0.5, 0.5, 0.0, 0.0]
    assert math.isnan(t_tail(math.nan, degrees))
    assert (t_quantile(0.5, degrees), t_quantile(0.0, degrees), t_quantile(1.0, degrees)) == (0.0, math.inf, -math.inf)


def test_the_two_packages_have_the_same_text() -> None:
    assert Path(of_profiling.__file__).read_text() == Path(of_ci.__file__).read_text()
