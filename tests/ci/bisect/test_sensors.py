"""Bisections by time whose programs are read too, on tests that write the dumps of XLA themselves."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ci.bisect.test_command import answer, program, rungs

DUMP = """
import pathlib, re
dump = re.search(r"--xla_dump_to='?([^'\\s]+)", os.environ.get("XLA_FLAGS", ""))
if dump:
    pathlib.Path(dump[1]).mkdir()
    text = "  %dot.1 = f32[8]{{0}} dot(%a, %b), metadata={{source_file=\\"/t.py\\" source_line=3}}\\n"
    pathlib.Path(dump[1], "module_0001.jit_f.cpu_after_optimizations.txt").write_text(text * ({dots}))
    pathlib.Path(dump[1], "module_0001.jit_f.before_optimizations.txt").write_text(text)
"""


def bisect_metric(tmp_path: Path, metric: str, dots: str, *arguments: str) -> dict[str, Any]:
    text = f"{DUMP.format(dots=dots)}\nprint(f'time={{{metric}}}')"
    return answer("--rungs", rungs(tmp_path), "--metric", "time", *arguments, *program(tmp_path, text))


@pytest.mark.slow
def test_the_answer_names_the_instruction_and_its_python_line(tmp_path: Path, state: Path) -> None:
    found = bisect_metric(tmp_path, "random.gauss(2 if n >= 13 else 1, 0.01)", "1 + (n >= 13)")
    assert (found["kind"], found["culprits"]) == ("culprit", ["n013"])
    assert found["programs"][1:] == ["jit_f: 1 -> 2 instructions", "  + 1 dot f32[8]{0}  (dot.1 at /t.py:3)"]
    tested = {probe["name"] for probe in found["probes"]}
    assert tested == {"n012", "n013", "n019"}, "programs say where to look, time where it matters"
    assert not list(state.rglob("hlo")), "dumps are large"


@pytest.mark.slow
def test_a_change_of_the_program_beside_the_culprit_does_not_mislead(tmp_path: Path) -> None:
    found = bisect_metric(tmp_path, "random.gauss(2 if n >= 13 else 1, 0.01)", "1 + (n >= 4)")
    assert (found["kind"], found["culprits"]) == ("culprit", ["n013"])
    assert found["programs"] == ["Both sides compile the same 1 programs."]


@pytest.mark.slow
def test_a_machine_too_loud_to_time_still_tells_where_the_program_changes(tmp_path: Path) -> None:
    found = bisect_metric(tmp_path, "random.lognormvariate(0.1 * (n >= 13), 1.5)", "1 + (n >= 13)")
    assert (found["exit_code"], found["kind"], found["culprits"]) == (0, "program_change", ["n013"])
    assert "too loud" in found["title"]
    assert "dot.1 at /t.py:3" in found["programs"][2]


@pytest.mark.slow
def test_a_test_without_programs_costs_one_run_more(tmp_path: Path, state: Path) -> None:
    text = "print(f'time={random.gauss(2 if n >= 13 else 1, 0.01)}')"
    found = answer("--rungs", rungs(tmp_path), "--metric", "time", *program(tmp_path, text))
    assert (found["culprits"], found["programs"]) == (["n013"], [])
    sensed = [json.loads(path.read_text()) for path in state.rglob("sensed/*.json")]
    assert len(sensed) <= 3  # an end, and both sides of the answer
