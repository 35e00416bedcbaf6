"""What others wrote is shown, and cannot act: control sequences, bidirectional text, commands of GitHub's runners."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from nightjar_ci.untrusted.console import HarmlessConsole
from nightjar_ci.untrusted.terminal import HarmlessStream, OutputClosedError, harmless_output, show_controls

HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b1A \u202eko\u2066 \r\x7f"


def write(*texts: str, github: bool = True, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    stream = HarmlessStream(io.TextIOWrapper(raw, encoding=encoding, newline=""), breaks_commands=github)
    for text in texts:
        stream.write(text)
    stream.flush()
    return raw.getvalue().decode(encoding)


def test_control_characters_are_spelled_out() -> None:
    shown = show_controls(HOSTILE)
    assert shown.isprintable()
    assert shown.startswith(r"\u001b]0;title\u0007\u001b[2J\u009b1A \u202eko")
    assert show_controls("a\tb\nc\r\nñ 漢 العربية") == "a\tb\nc\nñ 漢 العربية"


@given(st.text())
def test_json_stays_the_same_json(text: str) -> None:
    document = json.dumps({"text": text}, ensure_ascii=False)
    assert json.loads(write(document, github=False)) == {"text": text}
    assert json.loads(write(document)) == {"text": text}


@pytest.mark.parametrize("line", ["::add-mask::x", " \t::set-output name=a::b", "a\n::error::b", "##[command]x"])
def test_commands_of_a_runner_are_broken_up(line: str) -> None:
    shown = write(line)
    assert not any(part.lstrip().startswith("::") for part in shown.splitlines())
    assert "##[" not in shown
    assert write(line, github=False) == line


def test_a_command_inside_a_line_is_left() -> None:
    assert write("tests/x.py", "::test_a\n", "a::b\n") == "tests/x.py::test_a\na::b\n"
    assert write("tests\n", "::test_a") == "tests\n\\u003a:test_a"


def test_what_the_encoding_lacks_is_escaped() -> None:
    assert write("漢\udcff\n", encoding="ascii") == "\\u6f22\\udcff\n"


def test_a_console_keeps_its_own_colours_and_shows_those_of_others() -> None:
    file = io.StringIO()
    console = HarmlessConsole(file=file, force_terminal=True, color_system="standard", width=200)
    console.print(HOSTILE, style="bold", markup=False, highlight=False)
    assert file.getvalue().startswith("\x1b[1m\\u001b]0;title")
    assert file.getvalue().count("\x1b") == 2  # bold on, and off
    plain = io.StringIO()
    rich_alone = Console(file=plain, force_terminal=True, color_system="standard", width=200)
    rich_alone.print(HOSTILE, markup=False, highlight=False)
    assert "\x1b[2J" in plain.getvalue()  # which is why


def test_the_streams_are_ours_only_inside() -> None:
    before = sys.stdout, sys.stderr
    with harmless_output({}):
        assert isinstance(sys.stdout, HarmlessStream)
        assert isinstance(sys.stderr, HarmlessStream)
    assert (sys.stdout, sys.stderr) == before


def test_a_closed_stream_is_told_from_other_pipes() -> None:
    source, target = os.pipe()
    os.close(source)
    with os.fdopen(target, "w", closefd=False) as raw:
        stream = HarmlessStream(raw)
        stream.write("x")
        with pytest.raises(OutputClosedError):
            stream.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), target)
    os.close(target)


def test_a_reader_that_has_enough_is_not_a_regression(tmp_path: Path) -> None:
    source, target = os.pipe()
    os.close(source)
    command = [sys.executable, "-m", "nightjar_ci", "show", "run"]
    done = subprocess.run(command, stdout=target, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path)
    os.close(target)
    assert (done.returncode, done.stderr) == (141, "")
