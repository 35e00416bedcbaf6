"""The rehearsal of workflows: expressions, steps in a real shell and artifacts go as on GitHub."""

from pathlib import Path

import pytest

from tests.rehearsal.expressions import ExpressionError, fill
from tests.rehearsal.runner import Runner
from tests.rehearsal.stand_ins import StandIns
from tests.rehearsal.workflow import read_workflow
from tests.repo.test_workflows import CONTEXTS


@pytest.mark.parametrize("text", ["github.nothing", "nobody.knows", "unknown()", "1 +", "github.ref 'x'"])
def test_an_expression_that_is_not_understood_is_an_error_and_no_empty_text(text: str) -> None:
    with pytest.raises(ExpressionError):
        fill(f"${{{{ {text} }}}}", CONTEXTS, {})


def test_a_step_with_a_status_runs_in_a_real_shell_and_its_variables_reach_the_next(tmp_path: Path) -> None:
    (tmp_path / "flow.yml").write_text(
        "on: push\njobs:\n  one:\n    env: { A: '1' }\n    steps:\n"
        '      - run: echo "B=$((A + 1))" >> "$GITHUB_ENV"\n'
        '      - run: test "$B" = 2\n'
        "      - run: exit 4\n        id: may\n        continue-on-error: true\n"
        "      - run: touch reached\n        if: steps.may.outcome == 'failure'\n"
        "      - run: exit 3\n"
        "      - run: touch unreached\n"
        "  two:\n    needs: one\n    steps: [{ run: touch unreached }]\n"
        "  three:\n    needs: one\n    if: always()\n    steps: [{ run: touch after }]\n"
    )
    stand_ins = StandIns(tmp_path, tmp_path)
    stand_ins.artifacts.mkdir()
    runner = Runner(tmp_path, stand_ins, CONTEXTS)
    assert runner.run(read_workflow(tmp_path / "flow.yml", tmp_path)) == "failure"
    assert [(one.outcome, one.status) for one in runner.done] == [
        ("success", 0),
        ("success", 0),
        ("failure", 4),
        ("success", 0),
        ("failure", 3),
        ("skipped", None),
        ("success", 0),
    ]
    assert sorted(path.name for path in tmp_path.glob("*ed")) == ["reached"]
    assert (tmp_path / "after").exists()
