import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_profiling.attribution import fusion_cost
from nightjar_profiling.attribution.attribute import attribute
from nightjar_profiling.attribution.fusion_cost import split_cost, split_costs
from nightjar_profiling.hlo.collective_kinds import find_collectives
from nightjar_profiling.hlo.hlo import Program
from tests.profiling.builders import Hlo, program


def nest(calls: list[list[int]], opcode: str = "call") -> Program:
    """Computation n holds an add with a frame and calls computations before it, as many as the list says."""
    computations = {}
    for number, called in enumerate(calls):
        inner = [Hlo(f"p.{number}", opcode="parameter"), Hlo(f"add.{number}", 1 + number % 4, (f"p.{number}",))]
        for place, one in enumerate(called):
            name = f"call.{number}.{place}"
            inner.append(Hlo(name, operands=(inner[-1].name,), calls=(f"c{one % number}",), opcode=opcode))
        computations[f"c{number}"] = inner
    return program(computations)


@given(st.lists(st.lists(st.integers(0, 50), max_size=3), min_size=1, max_size=12), st.booleans())
def test_all_at_once_costs_what_each_costs_alone(calls: list[list[int]], every: bool) -> None:
    found = nest([[], *calls])
    asked = [name for name in found.instructions if name.startswith("call")][:: 1 if every else 2]
    expected = {}
    for name in asked:
        by_frame: dict[int, float] = {}
        for inner, cost in split_cost(found, name).items():
            frame_id = found.instructions[inner].frame_id
            if frame_id is not None:
                by_frame[frame_id] = by_frame.get(frame_id, 0.0) + cost
        expected[name] = pytest.approx(by_frame)
    assert split_costs(found, asked) == expected


def test_calls_nested_3000_deep_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    cost = fusion_cost._computation_cost

    def counted(one: Program, computation: str) -> dict[str, float]:
        looked.append(computation)
        return cost(one, computation)

    monkeypatch.setattr(fusion_cost, "_computation_cost", counted)
    found = nest([[], *([number] for number in range(3000))])
    asked = [f"call.{number}.0" for number in range(1, 3001)]
    outermost = [one for one in attribute(found, asked) if one.instruction == asked[-1] and one.weight]
    assert sorted(looked) == sorted(f"c{number}" for number in range(3000))
    # A quarter each, but that the innermost also writes the result.
    assert [one.weight for one in outermost] == pytest.approx([0.25] * 4, rel=2e-3)


def test_a_result_that_a_tuple_holds_twice_is_written_once() -> None:
    inner = [Hlo("p.0", opcode="parameter"), Hlo("add.1", 1, ("p.0",)), Hlo("bitcast.1", operands=("add.1",))]
    once, twice = (
        program({"c": [*inner, Hlo("tuple.1", operands=results)], "main": [Hlo("fusion.1", calls=("c",))]})
        for results in (("add.1",), ("bitcast.1", "add.1"))
    )
    assert split_cost(twice, "fusion.1") == split_cost(once, "fusion.1")


def test_a_circle_of_calls_ends() -> None:
    found = program({"a": [Hlo("add.1", 1), Hlo("call.1", calls=("b",))], "b": [Hlo("call.2", calls=("a",))]})
    assert set(split_costs(found, ["call.1", "call.2", "none"])) == {"call.1", "call.2"}


def test_a_collective_below_fusions_nested_3000_deep_is_found_for_each() -> None:
    computations = {"c0": [Hlo("p.0", opcode="parameter"), Hlo("all-gather.1", operands=("p.0",))]}
    computations |= {f"c{n}": [Hlo(f"fusion.{n}", calls=(f"c{n - 1}",))] for n in range(1, 3001)}
    assert len(find_collectives(program(computations))) == 3001
