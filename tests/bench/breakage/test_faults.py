"""The faults of a function of a library: only its own expressions, and who executes them."""

from pathlib import Path

from tests.bench.breakage.conformance import executes
from tests.bench.breakage.draw import Fault, Place
from tests.bench.breakage.mutate import find_changes, find_function, find_node_defaults

SOURCE = """def other(x=4):
    return x > 5


class Layer:
    def call(self, x=3, *, bias=-1):
        y = total(
            x,
            keep=x + 7,
        )
        return y * 2
"""
PLACE = Place(module="m", function="Layer.call", file=Path("m.py"), root=Path())


def list_faults() -> dict[str, Fault]:
    function = find_function(SOURCE, PLACE.function)
    assert function is not None
    changes = find_changes(SOURCE, function)
    return {one.before: Fault(name="m.f", place=PLACE, mutant=one, statement=line) for one, line in changes}


def test_faults_are_of_that_function_alone_and_know_their_statement() -> None:
    faults = list_faults()
    assert {text: fault.statement for text, fault in faults.items() if "\n" not in text} == {
        **{"3": 0, "1": 0, "x + 7": 7, "7": 7, "y * 2": 11, "2": 11}
    }
    changed = faults["7"].mutant.plant(SOURCE.encode()).decode()
    assert changed == SOURCE.replace("x + 7", "x + 8")


def test_a_cell_that_executes_no_line_of_the_statement_does_not_execute_the_fault() -> None:
    fault, default = list_faults()["x + 7"], list_faults()["3"]
    for line, is_executed in ((6, False), (7, True), (9, True), (10, False), (11, False)):
        assert executes({"m:Layer.call": [line]}, fault) is is_executed, line
        assert executes({"m:Layer.call": [line]}, default)
    assert not executes({"m:other": [7]}, fault)
    assert not executes({}, default)


def test_the_changed_defaults_of_a_function_are_read_from_its_text() -> None:
    function = find_function(SOURCE.replace("x=3", "x=4"), PLACE.function)
    assert function is not None
    assert find_node_defaults(function) == ([(4,)], {"bias": (-1,)})
