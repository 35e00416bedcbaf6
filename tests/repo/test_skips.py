"""The budget of skipped tests: over it a whole machine fails, another one does not; every pattern is still in use."""

import re
from fnmatch import fnmatchcase

import pytest

from tests.machine import PARTS
from tests.places import ROOT
from tests.skips import SkipBudget, read_budget

pytest_plugins = ["pytester"]
MODULE = """
import pytest

@pytest.mark.parametrize("n", range(3))
def test_asks(n):
    pytest.skip("no gpu: JAX computes on cpu")

def test_passes():
    pass
"""


@pytest.mark.parametrize(("most", "code"), [(3, pytest.ExitCode.OK), (2, pytest.ExitCode.TESTS_FAILED)])
def test_a_run_over_its_budget_fails_by_name(pytester: pytest.Pytester, most: int, code: pytest.ExitCode) -> None:
    pytester.makepyfile(MODULE)
    plugin = SkipBudget({"no gpu: *": most})
    done = pytester.inline_run("-p", "no:cacheprovider", plugins=[plugin])
    assert done.ret == code
    assert len(plugin.reasons) == 3


def test_the_budget_names_parts_and_reasons_that_tests_have() -> None:
    texts = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    reasons = [f"no {part}: not there" for part in PARTS]
    reasons += [re.sub(r"{[^{}]*}", "x", text) for source in texts for text in re.findall(r'"([^"\n]+)"', source)]
    unused = [pattern for pattern in read_budget() if not any(fnmatchcase(reason, pattern) for reason in reasons)]
    assert unused == []
