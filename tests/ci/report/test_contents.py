"""Values for people: three digits, no powers of ten at the edges of a unit."""

import pytest

from nightjar_ci.report.contents import with_unit


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0513, "s", "51.3 ms"),
        (0.9994, "s", "999 ms"),
        (0.9996, "s", "1 s"),
        (-0.9996, "s", "-1 s"),
        (1.0, "s", "1 s"),
        (1000.0, "s", "1,000 s"),
        (999.4, "bytes", "999 B"),
        (999.6, "bytes", "1,000 B"),
        (1023, "bytes", "1,023 B"),
        (1024, "bytes", "1 KiB"),
        (1000 * 1024, "bytes", "1,000 KiB"),
        (1023.6 * 1024, "bytes", "1 MiB"),
        (3.2e8, "bytes", "305 MiB"),
        (5000 * 1024**4, "bytes", "5,000 TiB"),
        (999.4, "tokens/s", "999 tokens/s"),
        (999.7, "tokens/s", "1,000 tokens/s"),
        (-41234.6, "tokens/s", "-41,235 tokens/s"),
        (0.0, "x", "0 x"),
    ],
)
def test_a_value_has_three_digits_and_no_power_of_ten(value: float, unit: str, text: str) -> None:
    assert with_unit(value, unit) == text
