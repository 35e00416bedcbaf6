"""A bench that misses a goal ends with 1; a goal that could not be measured counts, and the bench ends with 4."""

import ast
import math
from pathlib import Path

import pytest

from tests.bench.conftest import BENCHES
from tests.bench.table import NotMeasuredError, Row, finish, measure_part, print_rows

FAST = Row("time of one night", 1.0, goal=2.0, unit="s", rival="Otava", rival_value=10.0)
WEAK = Row("power", 0.5, goal=0.9, better="higher", rival="asv", rival_value=0.25)


LACKING = Row("page on the screen", lack="no browser")


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        ([FAST], 0),
        ([FAST, WEAK], 1),
        ([FAST, LACKING], 4),
        ([FAST, LACKING, WEAK], 1),  # a missed goal weighs more
        ([Row("only informs", 1.0)], 1),
    ],
)
def test_the_exit_code_is_that_of_the_goals(rows: list[Row], code: int) -> None:
    assert finish("bench_gate", rows) == code


def test_a_goal_without_a_row_is_not_measured_and_shown_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    def lack() -> list[Row]:
        raise NotMeasuredError("no data")

    rows = measure_part([FAST.name, WEAK.name], lambda: [FAST, Row("only informs", 1.0)])
    assert [row.name for row in rows if row.lack] == [WEAK.name]
    print_rows("Gate", measure_part([FAST.name, WEAK.name], lack))
    shown = capsys.readouterr().out
    assert shown.count("not measured: no data") == 2
    assert "nan" not in shown


def list_parts(main: Path) -> list[str]:
    """The parts of a bench, read from its text: the rivals that it imports are not installed here."""
    for node in ast.parse(main.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "PARTS":
            parts: list[str] = list(ast.literal_eval(node.value))
            return parts
    return []


def test_every_part_of_a_bench_states_its_goals_for_the_options_with_which_it_measures() -> None:
    stated = []
    for main in BENCHES.glob("*/__main__.py"):
        for part in list_parts(main):
            body = ast.parse((main.parent / f"{part}.py").read_text()).body
            functions = {node.name: ast.unparse(node.args) for node in body if isinstance(node, ast.FunctionDef)}
            stated.append(f"{main.parent.name}.{part}")
            assert functions["list_goals"] == functions["measure"], stated[-1]
    assert len(stated) > 20
    assert "gate.store" in stated


def test_a_rival_without_an_answer_has_no_ratio_and_one_by_zero_is_no_crash(capsys: pytest.CaptureFixture[str]) -> None:
    silent = Row("x", 1.0, rival="old", rival_value=math.nan)
    print_rows("Gate", [silent])
    assert silent.ratio is None
    assert "no answer" in (shown := capsys.readouterr().out)
    assert "nan" not in shown
    assert Row("x", 0.0, rival="old", rival_value=3.0).ratio == math.inf
    assert Row("x", 0.0, rival="old", rival_value=0.0).ratio == 1.0
