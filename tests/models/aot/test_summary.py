"""Whether a step fits, at the limits: JAX takes 90 % of a device at most, and a step 95 % of that."""

import pytest

from nightjar_models.aot.summary import describe_fit

DEVICE = 80 << 30


@pytest.mark.parametrize(
    ("share", "said"),
    [
        (0.01, "fits"),
        (0.75 * 0.95, "fits"),
        (0.7126, "fits with XLA_CLIENT_MEM_FRACTION=0.76"),
        (0.90 * 0.95, "fits with XLA_CLIENT_MEM_FRACTION=0.90"),
    ],
)
def test_a_step_that_needs_more_than_jax_takes_by_itself_names_the_variable(share: float, said: str) -> None:
    assert describe_fit(int(share * DEVICE), DEVICE) == said


def test_a_step_that_does_not_fit_says_what_would_make_it_smaller() -> None:
    said = describe_fit(int(0.90 * 0.95 * DEVICE) + 1, DEVICE)
    assert said.startswith("does not fit: JAX takes at most 90% of a device, and a step at most 95% of that")
    assert "compute.remat=full" in said
