"""The lines of a recorder, and the list of names that people use."""

from pathlib import Path

import pytest

from nightjar_ci.calls.recording import read_recording, read_used
from nightjar_ci.errors import InputError


def write(folder: Path, *lines: str) -> None:
    (folder / "7.jsonl").write_text("\n".join(lines))


def test_a_last_line_that_a_killed_process_did_not_finish_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, '["function", "jax._src.nn", "relu"]', '["function", "jax._sr')
    assert read_recording(tmp_path).functions == {"jax._src.nn:relu"}


HOSTILE = [
    *("{}", '["function", 1]', "nonsense", '["name", "jax"]', "[" * 100_000, '["alias", 1, "a"]'),
    *('["alias", "a", {}]', '["function", "a", "\\ud800"]', '["name", "a", "b", "c", [], []]', '["function", [], "a"]'),
    '["name", "a", "b", "c", null, [["a"]]]',
]


@pytest.mark.parametrize("line", HOSTILE)
def test_another_file_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    write(tmp_path, line, "")
    with pytest.raises(InputError, match="is not a line of the recorder"):
        read_recording(tmp_path)


def test_a_method_of_an_executed_value_counts_where_a_function_of_its_name_ran(tmp_path: Path) -> None:
    name = '["name", "jax", "config", "mine", null, []]'
    write(tmp_path, name, '["function", "jax._src.config", "Config.update"]', "")
    recording = read_recording(tmp_path)
    executed = recording.executed()
    assert recording.find_users("jax.config.update", executed) == {"mine"}
    assert recording.find_users("jax.config.read", executed) == set()


def test_the_names_of_a_list_are_written_in_full(tmp_path: Path) -> None:
    path = tmp_path / "used.json"
    path.write_text('{"symbols": [{"symbol": "jnp.where", "files": 3}, {"symbol": "optax.adam", "files": 2}]}')
    assert read_used(path) == {"jax.numpy.where": 3, "optax.adam": 2}


@pytest.mark.parametrize("text", ["[]", "{}", '{"symbols": [{"symbol": "jnp.where"}]}', "x", '{"symbols": [1]}'])
def test_a_list_of_another_form_is_refused_with_the_form(tmp_path: Path, text: str) -> None:
    path = tmp_path / "used.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"used\.json: .*expected \{\"symbols\""):
        read_used(path)
