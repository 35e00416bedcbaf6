"""The packages never import each other, so this one has a copy; tests/ci/judges/test_student_t.py has the numbers."""

from pathlib import Path

from nightjar_ci.judges import student_t as of_ci
from nightjar_profiling.analyses.compare import student_t as of_profiling


def test_the_two_packages_have_the_same_text() -> None:
    assert Path(of_profiling.__file__).read_text() == Path(of_ci.__file__).read_text()
