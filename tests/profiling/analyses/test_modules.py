"""The tree of modules: no time is lost or counted twice, and a module comes before those inside it."""

from nightjar_profiling.analyses.modules import NO_MODULE, sum_scopes, tabulate_modules
from nightjar_profiling.capture_folder.tables import Tables
from tests.profiling.tabled import tables


def captured() -> Tables:
    def op(instruction: str | None, ns: int) -> dict[str, object]:
        return {"program_id": 1, "instruction": instruction, "duration_ns": ns, "start_ns": 0, "rank": 0, "device": 0}

    def scope(instruction: str, path: str, phase: str, weight: float) -> dict[str, object]:
        return {"program_id": 1, "instruction": instruction, "scope": path, "phase": phase, "weight": weight}

    return tables(
        ops=[op("a", 100), op("a", 1), op("b", 50), op(None, 7)],
        scopes=[
            scope("a", "M/x", "forward", 1 / 3),
            scope("a", "M/y", "forward", 2 / 3),
            scope("b", "M/x", "backward", 1.0),
        ],
    )


def test_shares_add_up_to_the_time_of_the_ops() -> None:
    assert sum_scopes(captured())["duration_ns"].sum() == 158


def test_a_module_has_the_time_of_those_inside_it() -> None:
    rows = {row["module"]: row for row in tabulate_modules(captured()).iter_rows(named=True)}
    assert [*rows] == ["M", "M/x", "M/y", NO_MODULE]
    assert (rows["M"]["total_ns"], rows["M"]["self_ns"]) == (151, 0)
    assert (rows["M/x"]["forward"], rows["M/x"]["backward"]) == (34, 50)
    assert sum(row["self_ns"] for row in rows.values()) == 158


def test_a_program_without_modules_and_phases_has_no_tree() -> None:
    assert tabulate_modules(tables(ops=[{"program_id": 1, "instruction": "a", "duration_ns": 5}])).is_empty()
