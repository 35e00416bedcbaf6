"""What a mistake in a file is called, and that a file is never half written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nightjar_ci.errors import InputError, SchemaError
from nightjar_ci.formats.documents import read_document, write_json, write_text
from nightjar_ci.formats.ledger import read_ledger
from nightjar_ci.formats.run_record import read_run
from nightjar_ci.night.matrix import Matrix, read_matrix

JOB = '[[job]]\nname = "a"\ncommand = ["true"]\n'
HEAD = 'schema = "nightjar.matrix/1"\nname = "m"\n'


def problem(path: Path, text: str) -> InputError:
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_matrix(path)
    return caught.value


def test_an_unknown_key_is_named_with_its_place_and_the_nearest_right_key(tmp_path: Path) -> None:
    error = problem(tmp_path / "matrix.toml", f"{HEAD}{JOB}{JOB}timeout = 3\n")
    assert error.message.startswith(f"{tmp_path}/matrix.toml: job 2: unknown key 'timeout': expected one of ")
    assert error.hint == "did you mean 'timeout_s'?"
    assert error.exit_code == 2


def test_a_wrong_type_is_named_with_its_value(tmp_path: Path) -> None:
    error = problem(tmp_path / "matrix.toml", f'{HEAD}{JOB}timeout_s = "long"\n')
    assert "job 1.timeout_s: Input should be a valid number, found 'long'" in error.message


def test_a_command_in_quotes_is_shown_as_the_list_that_it_should_be(tmp_path: Path) -> None:
    wrong = JOB.replace(re.search(r"command = (.*)", JOB)[0], 'command = "pytest -q"')  # type: ignore[index]
    error = problem(tmp_path / "matrix.toml", HEAD + wrong)
    expected = 'job 1.command: expected a list of strings, such as ["pytest", "-q"], found \'pytest -q\'.'
    assert error.message.endswith(expected)
    both = problem(tmp_path / "matrix.toml", f'{HEAD}{wrong}seeds = "3"\n')
    assert both.message.endswith("found 'pytest -q'; job 1.seeds is not valid either.")
    assert (
        "job 1.seeds: expected a list, found '3'."
        in problem(tmp_path / "matrix.toml", f'{HEAD}{JOB}seeds = "3"\n').message
    )


def test_a_number_in_quotes_is_no_number(tmp_path: Path) -> None:
    assert "found '300'" in problem(tmp_path / "matrix.toml", f'{HEAD}{JOB}timeout_s = "300"\n').message


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    error = problem(tmp_path / "matrix.toml", f'{HEAD}[[job]]\nname = "a"\n')
    assert error.message.endswith("job 1.command: this key is missing.")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.toml: no such file"):
        read_matrix(tmp_path / "absent.toml")


def test_a_folder_instead_of_a_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_matrix(tmp_path)


def test_truncated_json_asks_whether_the_writer_was_killed(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"schema": "nightjar.run/1", "job": "a"')
    with pytest.raises(InputError, match="not valid JSON") as caught:
        read_run(tmp_path / "result.json")
    assert caught.value.hint is not None
    assert "was its writer killed" in caught.value.hint


@pytest.mark.parametrize("text", ["", "[1]", "\x00\x01", "null"])
def test_garbage_is_an_input_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(InputError, match=r"result\.json"):
        read_run(tmp_path / "result.json")


def test_a_newer_schema_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "matrix.toml").write_text('schema = "nightjar.matrix/2"\n')
    with pytest.raises(SchemaError, match=r"'nightjar\.matrix/2', this version reads 'nightjar\.matrix/1'") as caught:
        read_document(tmp_path / "matrix.toml", Matrix, "nightjar.matrix/1")
    assert caught.value.hint == "upgrade nightjar-ci"


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "night.json"
    write_text(path, "before")
    program = (
        "import resource, signal, sys, pathlib; from nightjar_ci.formats.documents import write_text;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000));"
        "write_text(pathlib.Path(sys.argv[1]), 'x' * 5000)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert "File too large" in done.stderr
    assert path.read_text() == "before"
    assert [one.name for one in tmp_path.iterdir()] == ["night.json"]


def test_a_file_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[str, str]] = []
    sync, replace = os.fsync, Path.replace

    def record_sync(descriptor: int) -> None:
        steps.append(("fsync", str(Path(f"/proc/self/fd/{descriptor}").readlink())))
        sync(descriptor)

    def record_replace(path: Path, target: Path) -> Path:
        steps.append(("rename", str(path)))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Path, "replace", record_replace)
    write_text(tmp_path / "night.json", "{}")
    unfinished = steps[0][1]
    assert steps == [("fsync", unfinished), ("rename", unfinished), ("fsync", str(tmp_path))]
    assert [path.name for path in tmp_path.iterdir()] == ["night.json"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_file_has_the_mode_that_the_user_wants(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_text(tmp_path / "night.json", "{}")
    finally:
        os.umask(before)
    assert (tmp_path / "night.json").stat().st_mode & 0o777 == mode


def test_what_killed_writers_left_is_swept_and_what_others_write_now_stays(tmp_path: Path) -> None:
    old, new, other = (tmp_path / f".{name}.unfinished" for name in ("a.json.1", "a.json.2", "b.json.1"))
    for path in (old, new, other):
        path.touch()
    for path in (old, other):
        os.utime(path, (0, 0))
    write_text(tmp_path / "a.json", "{}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [new.name, other.name, "a.json"]


@pytest.mark.parametrize("schema", ["", '"schema": "nightjar.ledger/1", '])
def test_state_of_one_program_needs_no_schema_and_reads_the_files_of_before_0_1_0(schema: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    path.write_text(f'{{{schema}"night": "2026-11-21T0300-1a2b", "due": []}}')
    ledger = read_ledger(path)
    assert (ledger.night, ledger.due) == ("2026-11-21T0300-1a2b", ())
    write_json(path, ledger)
    assert "schema" not in path.read_text()


def test_a_document_of_too_many_brackets_is_not_valid(tmp_path: Path) -> None:
    assert "not valid TOML" in problem(tmp_path / "matrix.toml", f"a = {'[' * 5000}").message
