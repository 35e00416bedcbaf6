"""Element types by their numbers in xla_data.proto: their sizes are in their names."""

import re

import pytest

from nightjar_profiling.hlo.shapes import ELEMENT_BITS, FLOATS, TYPES

NAMES = {
    **{1: "PRED", 2: "S8", 3: "S16", 4: "S32", 5: "S64", 6: "U8", 7: "U16", 8: "U32", 9: "U64"},
    **{10: "F16", 11: "F32", 12: "F64", 15: "C64", 16: "BF16", 18: "C128", 19: "F8E5M2", 20: "F8E4M3FN"},
    **{21: "S4", 22: "U4", 23: "F8E4M3B11FNUZ", 24: "F8E5M2FNUZ", 25: "F8E4M3FNUZ", 26: "S2", 27: "U2"},
    **{28: "F8E4M3", 29: "F8E3M4", 30: "S1", 31: "U1", 32: "F4E2M1FN", 33: "F8E8M0FNU"},
}


@pytest.mark.parametrize("number", NAMES)
def test_an_element_has_the_bits_and_the_kind_of_its_name(number: int) -> None:
    name = NAMES[number]
    bits = re.search(r"\d+", name)
    assert ELEMENT_BITS[number] == (8 if bits is None else int(bits[0]))
    assert (number in FLOATS) == name.startswith(("F", "BF", "C"))
    assert TYPES.get(number, name.lower()) == name.lower()


def test_no_other_number_has_a_size_or_a_name() -> None:
    assert ELEMENT_BITS.keys() == NAMES.keys()
    assert TYPES.keys() <= NAMES.keys()
