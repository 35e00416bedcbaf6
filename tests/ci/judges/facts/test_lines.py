"""Changed lines are named, lines that only moved are not."""

from nightjar_ci.formats.run_record import LineWork, Tally
from nightjar_ci.judges.facts.lines import MOST_LINES, OTHER, explain_lines


def tally(digest: str = "", **opcodes: int) -> LineWork:
    tallies = {opcode: Tally(count=count, bytes=4 * count) for opcode, count in opcodes.items()}
    return LineWork(opcodes=tallies, digest=digest)


def test_the_line_whose_instructions_changed_is_named_with_what_changed() -> None:
    old = {"a.py:3 loss": tally(dot=1, add=2), "a.py:4 loss": tally(tanh=1)}
    new = {"a.py:3 loss": tally(dot=2, add=2), "a.py:4 loss": tally(tanh=1)}
    assert explain_lines(old, new) == ["a.py:3 loss: dot 1 -> 2"]
    new = {"a.py:3 loss": tally(dot=2, add=9), "a.py:4 loss": tally(tanh=1)}
    assert explain_lines(old, new) == ["a.py:3 loss: add 2 -> 9, dot 1 -> 2"]  # the most changed first


def test_lines_that_moved_or_whose_file_was_renamed_are_equal() -> None:
    old = {"a.py:3 loss": tally(dot=1), "a.py:4 loss": tally(tanh=1)}
    new = {"b.py:13 loss": tally(dot=1), "b.py:14 loss": tally(tanh=1)}
    assert explain_lines(old, new) == []


def test_a_line_is_matched_by_its_order_where_others_moved_around_it() -> None:
    old = {"a.py:3 loss": tally(dot=1), "a.py:4 loss": tally(tanh=1), "a.py:9 step": tally(multiply=1)}
    new = {"a.py:5 loss": tally(dot=1), "a.py:6 loss": tally(tanh=2), "a.py:11 step": tally(multiply=1)}
    assert explain_lines(old, new) == ["a.py:6 loss: tanh 1 -> 2"]


def test_a_new_and_a_vanished_line_are_named() -> None:
    old = {"a.py:3 loss": tally(dot=1)}
    new = {"a.py:3 loss": tally(dot=1), "a.py:4 loss": tally(sine=1)}
    assert explain_lines(old, new) == ["a.py:4 loss: sine 0 -> 1"]
    assert explain_lines(new, old) == ["a.py:4 loss: sine 1 -> 0"]


def test_equal_counts_of_larger_results_are_told_in_bytes() -> None:
    old = {"a.py:3 loss": LineWork(opcodes={"dot": Tally(count=1, bytes=2 << 20)}, digest="")}
    new = {"a.py:3 loss": LineWork(opcodes={"dot": Tally(count=1, bytes=4 << 20)}, digest="")}
    assert explain_lines(old, new) == ["a.py:3 loss: dot results 2.00 MiB -> 4.00 MiB"]


def test_the_most_changed_lines_come_first_and_the_others_are_counted() -> None:
    old = {f"a.py:{line} loss": tally(dot=1) for line in range(1, 9)}
    new = {f"a.py:{line} loss": tally(dot=1 + line) for line in range(1, 9)}
    sentences = explain_lines(old, new)
    assert (len(sentences), sentences[-1]) == (MOST_LINES + 1, "and 3 other lines")
    assert sentences[0] == "a.py:8 loss: dot 1 -> 9"


def test_a_line_whose_own_kinds_are_equal_and_fusions_changed_is_told_last() -> None:
    old = {"a.py:3 loss": tally(fusion=900), "a.py:4 loss": tally(tanh=1)}
    new = {"a.py:3 loss": tally(fusion=901), "a.py:4 loss": tally(tanh=2)}
    assert [sentence.split()[0] for sentence in explain_lines(old, new)] == ["a.py:4", "a.py:3"]


def test_unknown_lines_explain_nothing() -> None:
    assert explain_lines({}, {"a.py:3 loss": tally(dot=1)}) == []


def test_a_line_with_the_same_instructions_that_computes_something_else_is_named() -> None:
    old = {"a.py:3 loss": tally("0", compare=1), "a.py:4 loss": tally("1", tanh=1)}
    new = {"a.py:5 loss": tally("2", compare=1), "a.py:6 loss": tally("1", tanh=1)}
    assert explain_lines(old, new) == [f"a.py:5 loss: {OTHER}"]


def test_an_opcode_counted_as_none_is_one_that_is_not_there() -> None:
    assert explain_lines({"a.py:3 loss": tally(dot=1)}, {"a.py:3 loss": tally(dot=1, add=0)}) == []


def test_a_line_counts_by_its_largest_change() -> None:
    old = {"a.py:3 loss": tally(dot=1, add=1), "a.py:4 loss": tally(tanh=1)}
    new = {"a.py:3 loss": tally(dot=90, add=2), "a.py:4 loss": tally(tanh=9)}
    assert [sentence.split()[0] for sentence in explain_lines(old, new)] == ["a.py:3", "a.py:4"]
