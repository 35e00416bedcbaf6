"""Advice on copies of parameters that a program returns untouched."""

from nightjar_profiling.analyses.passed import advise_donation
from nightjar_profiling.capture_folder.tables import Tables
from tests.profiling.tabled import op, tables


def spent(copy_ns: int) -> Tables:
    how = {"weight": 1.0, "root_weight": 1.0, "program_id": 1, "frame_id": 1}
    return tables(
        programs=[{"program_id": 1, "name": "jit_step", "fingerprint": "f"}],
        ops=[op("dot.1", 0, 800_000), op("copy.1", 800_000, copy_ns)],
        attribution=[{**how, "instruction": "dot.1", "how": "own"}, {**how, "instruction": "copy.1", "how": "passed"}],
    )


def test_donation_is_advised_where_it_spares_much_and_not_for_a_trifle() -> None:
    (advice,) = advise_donation(spent(200_000))
    assert advice.startswith("jit_step: 0.200 ms (20.0% of the device time) copy parameters")
    assert "donate_argnums" in advice
    assert list(advise_donation(spent(1_000))) == []
    assert list(advise_donation(tables())) == []
