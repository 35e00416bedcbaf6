"""`nightjar-ci show` of two results: which facts differ, in words and as JSON, and the exit code."""

import json
from pathlib import Path

import pytest

from nightjar_ci.cli import main
from tests.called import call
from tests.ci.nights import program_facts, record


def write(folder: Path, **changes: object) -> Path:
    folder.mkdir()
    facts = [program_facts(program="eval_step"), program_facts(**changes)]
    text = record(facts=facts).model_dump_json(by_alias=True)
    (folder / "result.json").write_text(text)
    return folder


@pytest.fixture
def results(tmp_path: Path) -> tuple[Path, Path]:
    return write(tmp_path / "good"), write(tmp_path / "new", flops=1.8e9)


def test_facts_that_differ_are_named_and_the_answer_is_no(results: tuple[Path, Path]) -> None:
    done = call(main, "show", *results)
    first, second, *lines = done.stdout.splitlines()
    assert (done.returncode, first, second) == (1, "eval_step: 0 facts differ", "train_step: 1 facts differ")
    assert any(line.startswith("  flops") for line in lines)


def test_a_tolerance_that_covers_the_change_makes_it_a_yes(results: tuple[Path, Path]) -> None:
    done = call(main, "show", *results, "--tolerance", "flops=0.5", "--json")
    _, program = json.loads(done.stdout)["programs"]
    assert (done.returncode, program["program"], program["facts"]) == (0, "train_step", [])


def test_two_results_without_facts_are_not_called_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "result.json").write_text(record(facts=[]).model_dump_json(by_alias=True))
    with pytest.raises(SystemExit) as ended:
        main(["show", str(tmp_path), str(tmp_path)])
    said = capsys.readouterr().err
    assert (ended.value.code, "error: neither result has compile facts" in said) == (4, True)


@pytest.mark.parametrize("setting", ["flops", "flops=-1", "flops=x", "=0.1"])
def test_a_tolerance_that_is_no_fraction_is_refused(setting: str, results: tuple[Path, Path]) -> None:
    done = call(main, "show", *results, "--tolerance", setting)
    assert (done.returncode, f"--tolerance {setting}" in done.stderr) == (2, True)


def test_what_is_not_a_format_is_refused() -> None:
    done = call(main, "show", "rum")
    assert (done.returncode, "'rum' is not a format" in done.stderr) == (2, True)
