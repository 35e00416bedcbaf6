"""Which earlier probes a bisection reuses: those of the same question, and of no other."""

import sys
from pathlib import Path

import pytest

from nightjar_ci.bisect.options.options import options_from_parameters
from nightjar_ci.bisect.options.plan import make_plan
from nightjar_ci.bisect.options.question_inputs import digest_files, digest_variables
from nightjar_ci.bisect.probing.runner import split_time
from nightjar_ci.settings import read_settings
from tests.ci.bisect.test_command import answer, program, rungs


def test_the_corrected_command_of_swapped_ends_is_another_question(tmp_path: Path) -> None:
    test = program(tmp_path, "sys.exit(n >= 13)")
    ends = ("--rungs", rungs(tmp_path), "--deterministic")
    swapped = answer("--good", "n019", "--bad", "n000", *ends, *test)
    assert swapped["exit_code"] == 4
    corrected = answer("--good", "n000", "--bad", "n019", *ends, *test)
    assert (corrected["exit_code"], corrected["culprits"], corrected["find"]) == (0, ["n013"], "regression")
    assert answer("--good", "n019", "--bad", "n000", *ends, *test)["title"] == swapped["title"]


@pytest.mark.slow
def test_a_swapped_metric_leaves_the_good_answer_as_it_is(tmp_path: Path, state: Path) -> None:
    test = program(tmp_path, "print(f'us={11 if n >= 13 else 10}')")
    ends = ("--rungs", rungs(tmp_path), "--metric", "us")
    good = answer("--good", "n000", "--bad", "n019", *ends, *test)
    before = (state / "bisections" / good["id"] / "answer.json").read_bytes()
    assert answer("--good", "n019", "--bad", "n000", *ends, *test)["id"] != good["id"]
    assert (state / "bisections" / good["id"] / "answer.json").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "options"),
    [("XLA_WHERE", ()), ("JAX_WHERE", ()), ("NCCL_WHERE", ()), ("WHERE", ("--pass-env", "WHERE"))],
)
def test_another_value_of_a_variable_that_the_test_inherits_is_another_question(
    name: str, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = program(tmp_path, f"sys.exit(n >= int(os.environ[{name!r}]))")
    for culprit in ("7", "13", "7"):
        monkeypatch.setenv(name, culprit)
        found = answer("--rungs", rungs(tmp_path), "--deterministic", *options, *test)
        assert found["culprits"] == [f"n{int(culprit):03d}"]


def test_an_edited_module_beside_the_test_is_another_question(tmp_path: Path) -> None:
    (tmp_path / "layers").mkdir()
    (tmp_path / "layers" / "__init__.py").touch()
    (tmp_path / "helper.py").write_text("from layers.deep import WHERE\n")
    test = program(tmp_path, "import helper; sys.exit(n >= helper.WHERE)")
    for culprit in (7, 13):
        (tmp_path / "layers" / "deep.py").write_text(f"WHERE = {culprit}  # {'x' * culprit}\n")
        found = answer("--rungs", rungs(tmp_path), "--deterministic", *test)
        assert found["culprits"] == [f"n{culprit:03d}"]


def test_an_edited_project_is_another_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = options_from_parameters({"rungs": rungs(tmp_path), "test": ["true"], "environment": "project:."})
    asked = set()
    for text in ("", "edited"):
        (tmp_path / "module.py").write_text(text)
        asked |= {make_plan(options, read_settings(), print).question.id for _ in range(2)}
    assert len(asked) == 2


def test_what_does_not_reach_the_test_is_the_same_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = program(tmp_path, "sys.exit(n >= 13)")
    options = ("--rungs", rungs(tmp_path), "--deterministic", *test)
    first = answer(*options)
    monkeypatch.setenv("WHERE", "7")
    monkeypatch.setenv("TERM", "vt100")
    (tmp_path / "unrelated.py").touch()
    assert answer(*options)["id"] == first["id"]


def test_imports_are_followed_as_python_does(tmp_path: Path) -> None:
    for name, text in {
        "run.py": "import json, a.b\ndef later():\n    from c import d",
        "a/__init__.py": "from . import side\nfrom .deep.low import thing",
        "a/b.py": "import a",  # a circle
        "a/side.py": "",
        "a/deep/low.py": "from ..side import x",
        "c.py": "this is not Python",
        "unused.py": "",
        "settings.toml": "",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    imported = {"a/__init__.py", "a/b.py", "a/side.py", "a/deep/low.py"}
    command = [sys.executable, "run.py", "--config=settings.toml", "--n", "3"]
    assert set(digest_files(command, tmp_path)) == {sys.executable, "run.py", "c.py", "settings.toml", *imported}
    assert set(digest_files(["python", "-m", "a.b"], tmp_path)) == imported
    assert set(digest_files(["python", "-c", "import unused"], tmp_path)) == {"unused.py"}


def test_secrets_leave_no_digest() -> None:
    environ = {"XLA_FLAGS": "x", "XLA_TOKEN": "secret", "MINE_A": "1", "MINE_TOKEN": "secret", "TERM": "vt100"}
    assert set(digest_variables(environ, ["MINE_*"])) == {"XLA_FLAGS", "MINE_A"}


@pytest.mark.parametrize(
    ("took_s", "tested_s", "builds", "times"),
    [
        (10.0, 4.0, 1, (6.0, 4.0)),
        (10.0, 4.0, 0, (0.0, 10.0)),  # nothing was built: what starting the test took belongs to it
        (4.0, 5.0, 1, (0.0, 5.0)),  # two clocks
    ],
)
def test_what_is_not_the_test_is_the_build_where_there_was_one(
    took_s: float, tested_s: float, builds: int, times: tuple[float, float]
) -> None:
    assert split_time(took_s, tested_s, builds) == times


def test_probes_that_use_one_file_do_not_meet_by_default(tmp_path: Path) -> None:
    file = f"__import__('pathlib').Path({str(tmp_path / 'file')!r})"
    text = f"import time; {file}.write_text(str(n)); time.sleep(0.1); sys.exit({file}.read_text() != str(n) or n >= 13)"
    found = answer("--rungs", rungs(tmp_path), *program(tmp_path, text))
    assert found["culprits"] == ["n013"]
    assert found["tests"] < 20
