import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_profiling.agents.questions import LARGEST_BYTES, Answer, job_text, write_answer


def answer(rows: int, text: str = "x", first: int = 0, total: int | None = None) -> Answer:
    listed = [{"row": number, "text": job_text(text)} for number in range(rows)]
    return Answer(
        rows=listed, file="capture/profile.json", uncertainty={"uncertain_fraction": 0.0}, first=first, total=total
    )


def test_an_answer_names_its_file_and_its_uncertainty() -> None:
    told = json.loads(write_answer(answer(1)))
    assert told["rows"] == [{"row": 0, "text": {"job_text": "x"}}]
    assert told["source"] == {"file": "capture/profile.json"}
    assert told["uncertainty"] == {"uncertain_fraction": 0.0}
    assert "next" not in told


@given(st.integers(0, 400), st.text(max_size=400))
def test_an_answer_has_at_most_4_kb_and_says_where_it_goes_on(rows: int, text: str) -> None:
    told = write_answer(answer(rows, text))
    assert len(told.encode("utf-8")) <= LARGEST_BYTES
    document = json.loads(told)
    assert document["total_rows"] == rows
    assert document.get("next", rows) == len(document["rows"])
    assert document["rows"] or not rows


def test_rows_before_the_first_count() -> None:
    told = json.loads(write_answer(answer(300, "long text", first=10, total=310)))
    assert told["next"] == 10 + len(told["rows"]) < 310


@pytest.mark.parametrize("hidden", ["\x1b[2J", "\u202e", "\u2028", "\u200b", "\ud800", "\n"])
def test_text_of_the_job_has_no_character_that_acts_or_hides(hidden: str) -> None:
    told = job_text(f"a{hidden}b")
    assert told is not None
    assert hidden not in told["job_text"]
    assert told["job_text"].isprintable() or "\ufffd" in told["job_text"]


def test_long_text_is_cut_and_says_so() -> None:
    told = job_text("a" * 1000)
    assert told is not None
    assert told["job_text"] == "a" * 160 + "…"


def test_rows_are_left_out_one_after_the_other_until_the_answer_fits() -> None:
    told = write_answer(answer(400))
    row_bytes = len(json.dumps({"row": 100, "text": {"job_text": "x"}}, separators=(",", ":"))) + 1
    assert len(told) > LARGEST_BYTES - 2 * row_bytes
