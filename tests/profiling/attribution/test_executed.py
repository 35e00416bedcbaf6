"""Code that lies in no file: whose text it is, and under which name."""

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from nightjar_profiling.attribution.executed import name_texts, read_texts
from nightjar_profiling.capture.launch import HOOK

PRODUCT = "def product(x):\n    return x @ x\n"
TOTAL = "def total(x):\n    return x + x\n"


def frames(*rows: tuple[str, int, str]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["file", "line", "function"], orient="row")


def test_one_text_keeps_the_name_that_its_frames_have() -> None:
    table = frames(("<string>", 2, "product"), ("a.py", 7, "<module>"))
    assert name_texts(table, {"<string>": [PRODUCT, TOTAL]})[1] == {"<string>": PRODUCT}
    assert name_texts(table, {"<string>": [PRODUCT]})[0].equals(table)


def test_each_of_several_texts_of_one_name_gets_a_name_of_its_own() -> None:
    table = frames(("<string>", 2, "total"), ("<string>", 2, "product"), ("<string>", 9, "other"))
    named, texts = name_texts(table, {"<string>": [PRODUCT, TOTAL]})
    assert texts == {"<string 1>": PRODUCT, "<string 2>": TOTAL}
    assert named["file"].to_list() == ["<string 2>", "<string 1>", "<string>"]


@pytest.mark.parametrize(
    "frame",
    [
        *(("<string>", 2, "absent"), ("<string>", 3, "product"), ("<string>", 0, "product")),
        *(("<string>", 2, "<lambda>"), ("<string>", 5, "product")),
    ],
)
def test_a_frame_outside_of_every_text_is_given_none(frame: tuple[str, int, str]) -> None:
    assert name_texts(frames(frame), {"<string>": [f"{PRODUCT}\n\n{TOTAL}"]})[1] == {}


def test_a_frame_that_fits_two_texts_is_given_none() -> None:
    twice = [PRODUCT, PRODUCT.replace("@", "*")]
    assert name_texts(frames(("<string>", 2, "product")), {"<string>": twice})[1] == {}


def test_a_cell_with_commands_of_the_notebook_is_still_shown() -> None:
    cell = "%time\ny = jnp.sin(x)\n"
    assert name_texts(frames(("<ipython-input-1-a>", 2, "<module>")), {"<ipython-input-1-a>": [cell]})[1] != {}


def test_a_damaged_file_of_texts_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "rank0000.sources").write_text(json.dumps({"<string>": [PRODUCT]}))
    (tmp_path / "rank0001.sources").write_text('{"<string>": ["def')
    (tmp_path / "rank0002.sources").write_text("[]")
    assert read_texts(tmp_path) == {"<string>": [PRODUCT]}


HEAR = f"""
import sys
sys.path.insert(0, {str(HOOK)!r})
import executed
executed.listen()
"""
TELL = "import json; print(json.dumps(executed.read_texts()))"


def hear(program: str, *options: str, stdin: Path | None = None) -> dict[str, list[str]]:
    command = [sys.executable, *options, *([] if stdin else ["-c", program])]
    with (stdin or Path("/dev/null")).open() as file:
        done = subprocess.run(command, stdin=file, capture_output=True, text=True, check=True)
    texts: dict[str, list[str]] = json.loads(done.stdout)
    return texts


def test_what_exec_and_compile_and_the_command_line_were_given_is_kept(tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text("a = 1\n")
    program = f"{HEAR}\nexec('b = 2'); exec(open({str(tmp_path / 'part.py')!r}).read())\n"
    program += f"compile('c = 3', '<cell 1>', 'exec'); compile('d = 4', 'file.py', 'exec')\n{TELL}"
    assert hear(program) == {"<string>": ["b = 2", "a = 1\n", program], "<cell 1>": ["c = 3"]}
    assert hear(program, "-X", "utf8", "-u")["<string>"][-1] == program


def test_what_libraries_execute_is_not_kept() -> None:
    program = f"{HEAR}\nimport dataclasses, collections\ncollections.namedtuple('A', 'b')\n"
    program += f"dataclasses.make_dataclass('B', ['c'])\n{TELL}"
    assert hear(program) == {"<string>": [program]}


def test_a_cell_in_linecache_is_kept_and_a_file_is_not(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    cell, name = "y = 2\n", "/tmp/ipykernel_1/no-such-cell.py"
    program = f"{HEAR}\nimport linecache\nlinecache.cache[{name!r}] = ({len(cell)}, None, [{cell!r}], {name!r})\n"
    program += f"linecache.getlines({str(tmp_path / 'a.py')!r})\n{TELL}"
    texts = hear(program)
    assert texts.pop("<string>") == [program]
    assert texts == {name: [cell]}


def test_a_program_on_standard_input_is_kept_where_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(f"{HEAR}\n{TELL}\n")
    kept = {"<stdin>": [f"{HEAR}\n{TELL}\n"]}
    assert hear("", stdin=tmp_path / "a.py") == kept
    assert hear("", "-", "-c", "an option of the program", stdin=tmp_path / "a.py") == kept
