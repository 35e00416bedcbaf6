"""The first inputs of the fuzzers: a reader that refuses its own is not fuzzed."""

import pytest

from tests.fuzz import nights, traces

TARGETS = {**traces.TARGETS, **nights.TARGETS}


@pytest.mark.parametrize("target", TARGETS)
def test_the_first_inputs_of_a_fuzzer_are_read(target: str) -> None:
    read, examples = TARGETS[target]
    (traces.SCRATCH / target).mkdir(exist_ok=True)
    inputs = list(examples())
    assert inputs
    for data in inputs:
        read(data)
