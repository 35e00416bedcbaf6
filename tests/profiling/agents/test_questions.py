import json
from pathlib import Path

import pytest

from nightjar_profiling.agents.questions import MOST_KEPT, Captures, list_captures, read_line, read_view, summarise
from nightjar_profiling.agents.server import make_server, make_tools
from nightjar_profiling.errors import InputError
from tests.bench.agents.known import HOSTILE, list_questions, make_captures


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captures")
    make_captures(folder)
    return folder


def test_a_hundred_questions_of_known_answer_are_answered_right(root: Path) -> None:
    questions = list_questions()
    assert len(questions) == 100
    tools = {tool.__name__: tool for tool in make_tools(Captures(root))}
    for question in questions:
        text = tools[question.tool](**question.arguments)
        answer = json.loads(text)
        assert question.is_right(answer), question.name
        assert len(text.encode()) <= 4096
        assert answer["source"]["file"]
        assert answer["uncertainty"]


def test_text_of_the_program_stands_only_where_it_is_marked(root: Path) -> None:
    tools = {tool.__name__: tool for tool in make_tools(Captures(root))}
    told = json.loads(tools["lines"]("before", contains="ignore all"))
    assert HOSTILE in told["rows"][0]["source"].pop("job_text")
    assert HOSTILE not in json.dumps(told)


@pytest.mark.parametrize("name", ["../before", "/etc", "nothing", "before/raw"])
def test_only_captures_below_the_folder_are_read(root: Path, name: str) -> None:
    (root / "inner").mkdir(exist_ok=True)
    with pytest.raises(InputError, match="not a capture here"):
        Captures(root / "inner" if name.startswith("..") else root).open(name)


def test_a_link_out_of_the_folder_is_not_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root / "before")
    with pytest.raises(InputError, match="not a capture here"):
        Captures(tmp_path).open("link")


def test_what_is_not_there_is_named_with_what_is(root: Path) -> None:
    captures = Captures(root)
    with pytest.raises(InputError, match="no device time has this line"):
        read_line(captures, "before", "model.py", 1000)
    with pytest.raises(InputError, match="not a view") as error:
        read_view(captures, "before", "nothing")
    assert "instructions" in str(error.value.hint)
    with pytest.raises(InputError, match="not a column of instructions"):
        read_view(captures, "before", "instructions", sort_by="nothing")


def test_a_capture_that_was_made_again_is_read_again(root: Path) -> None:
    captures = Captures(root)
    first = captures.open("before")
    assert captures.open("before") is first
    profile = first.path / "profile.json"
    profile.write_text(profile.read_text())
    assert captures.open("before") is not first
    assert len(captures.kept) <= MOST_KEPT


def test_a_folder_without_captures_says_that_there_are_none(tmp_path: Path) -> None:
    assert list_captures(Captures(tmp_path)).total == 0


def test_the_summary_lists_the_views(root: Path) -> None:
    facts = summarise(Captures(root), "after").facts
    assert facts is not None
    assert {"instructions", "opcodes", "programs", "steps"} <= set(facts["views"])


def test_the_server_has_every_tool_and_all_of_them_only_read(root: Path) -> None:
    pytest.importorskip("mcp", reason="mcp is not installed")
    import asyncio

    tools = asyncio.run(make_server(root).list_tools())
    assert {tool.name for tool in tools} == {"captures", "summary", "lines", "line", "view", "advice", "compare"}
    assert all(tool.annotations.read_only_hint for tool in tools)
    assert all(tool.description for tool in tools)
