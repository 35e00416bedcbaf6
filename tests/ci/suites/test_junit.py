"""JUnit files of each runner, and files that no runner writes."""

import math
from pathlib import Path
from typing import Any
from xml.parsers.expat import ExpatError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.errors import InputError
from nightjar_ci.suites import junit
from nightjar_ci.suites.junit import Reader, read_junit, read_measures

PYTEST = b"""<?xml version="1.0" encoding="utf-8"?>
<testsuites name="pytest tests"><testsuite name="pytest" errors="1" failures="1" skipped="2" tests="5" time="0.3">
<testcase classname="tests.test_a.TestX" name="test_y[1-a]" file="tests/test_a.py" line="3" time="0.125" />
<testcase classname="tests.test_a" name="test_bad" file="tests/test_a.py" line="9" time="1.5">
<failure message="AssertionError: sums&#10;assert 2 == 3">def test_bad():
&gt;       assert 1 + 1 == 3
E       AssertionError: sums</failure>
<system-out>--------------------------------- Captured Log ---------------------------------

--------------------------------- Captured Out ---------------------------------
some output
</system-out></testcase>
<testcase classname="tests.test_a" name="test_skip" time="0.0"><skipped type="pytest.skip" message="no GPU"/></testcase>
<testcase classname="tests.test_a" name="test_x" time="0"><skipped type="pytest.xfail" message="known"/></testcase>
<testcase classname="" name="tests.test_b" time="0.0"><error message="collection failure">E   ImportError: no x</error>
</testcase><testcase classname="" name="b.test_a" time="0"><error message="collection failure">import file mismatch:
imported module 'test_a' is another
HINT: use a unique basename</error></testcase></testsuite></testsuites>"""
UNITTEST = b"""<testsuites><testsuite name="T"><testcase classname="pkg.test_m.T" name="test_a" time="0.010"/>
<testcase classname="pkg.test_m.T" name="test_b" time="1,234.5">
<error type="ValueError" message="boom"><![CDATA[trace]]>
</error></testcase></testsuite></testsuites>"""
CTEST = b"""<testsuite name="(empty)" tests="3"><testcase name="t1" classname="t1" time="0.2" status="run"/>
<testcase name="t2" classname="t2" time="0.1" status="fail"><failure message="Failed"/><system-out>why</system-out>
</testcase><testcase name="t3" classname="t3" time="0" status="disabled"><disabled/></testcase></testsuite>"""
ABSL = b"""<testsuites><testsuite name="AddTest"><testcase name="test_add" status="run" result="completed" time="0.001"
classname="__main__.AddTest" file=""><failure message="1 != 2" type="AssertionError"><![CDATA[File "a.py"]]></failure>
</testcase><testcase name="test_off" status="notrun" result="suppressed" time="0" classname="__main__.AddTest"/>
</testsuite></testsuites>"""
SUREFIRE = b"""<testsuite><testcase classname="A" name="b" time="1"><flakyFailure message="once">trace</flakyFailure>
</testcase><testcase name="c"><error/><skipped/></testcase></testsuite>"""


def test_pytest_names_the_assertion_the_output_and_how_to_run_one_test() -> None:
    passed, failed, skipped, expected, error, mismatch = Reader().parse(PYTEST)
    assert (passed.name, passed.state, passed.duration_s) == ("tests.test_a.TestX.test_y[1-a]", "passed", 0.125)
    assert passed.node == "tests/test_a.py::TestX::test_y[1-a]"
    assert (failed.state, failed.message) == ("failed", "AssertionError: sums")
    assert failed.quote is not None
    assert failed.quote.splitlines()[-3:] == [
        "E       AssertionError: sums",
        "-- the end of its stdout:",
        "some output",
    ]
    assert (skipped.state, skipped.message, expected.state) == ("skipped", "no GPU", "skipped")
    assert (error.name, error.state, error.message) == ("tests.test_b", "failed", "ImportError: no x")
    assert mismatch.message == "import file mismatch: HINT: use a unique basename"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (UNITTEST, {"pkg.test_m.T.test_a": "passed", "pkg.test_m.T.test_b": "failed"}),
        (CTEST, {"t1": "passed", "t2": "failed", "t3": "skipped"}),
        (ABSL, {"__main__.AddTest.test_add": "failed", "__main__.AddTest.test_off": "skipped"}),
        (SUREFIRE, {"A.b": "flaky", "c": "failed"}),
    ],
)
def test_every_runner_is_read(data: bytes, expected: dict[str, str]) -> None:
    assert {case.name: case.state for case in Reader().parse(data)} == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0.12 nats", (0.12, "nats", "lower")),
        ("-3e4 tokens/s higher", (-3e4, "tokens/s", "higher")),
        ("nan nats", (math.nan, "nats", "lower")),
        ("7", ()),  # numbers without a unit are seeds, lines, process ids
        ("1.2.3 beta", ()),
        ("8 of 9", ()),
    ],
)
def test_a_property_with_a_unit_is_a_measure(tmp_path: Path, value: str, expected: tuple[Any, ...]) -> None:
    properties = f'<properties><property name="m" value="{value}"/></properties>'
    case, path = f'<testcase classname="a" name="t[0]">{properties}</testcase>', tmp_path / "junit.xml"
    path.write_text(f"<testsuite>{properties}{case}{case}</testsuite>")  # a property of the suite is none
    measured = [(one.name, one.values, one.unit, one.better) for one in read_measures([path, path], tmp_path)]
    assert repr(measured) == repr([("a.t[0].m", expected[:1] * 4, *expected[1:])] * bool(expected))  # nan != nan


def test_a_time_with_commas_is_a_number_and_nonsense_is_zero() -> None:
    assert Reader().parse(UNITTEST)[1].duration_s == 1234.5
    for time in ("nan", "-1", "1e99", "soon"):
        [case] = Reader().parse(f'<testsuite><testcase name="a" time="{time}"/></testsuite>'.encode())
        assert case.duration_s == 0


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b'<!DOCTYPE x [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><testsuite name="&b;"/>', "document type, 'x'"),
        (b'<!DOCTYPE x SYSTEM "file:///etc/passwd"><testsuite/>', "document type, 'x'"),
        (b"<html/>", "first element is 'html'"),
        (b"<testsuite>" * 70 + b"</testsuite>" * 70, "nested more than"),
        (b"<testsuite><testcase name='a'/></wrong>", "mismatched tag"),
    ],
)
def test_what_no_runner_writes_is_refused(data: bytes, what: str) -> None:
    with pytest.raises((ExpatError, ValueError), match=what):
        Reader().parse(data)


@given(st.binary(max_size=300) | st.text(alphabet="<>/testcasuilrfmg=' ", max_size=300).map(str.encode))
def test_no_bytes_end_in_another_error(data: bytes) -> None:
    for text in (data, b"<testsuite>" + data + b"</testsuite>"):
        try:
            Reader().parse(text)
        except (ExpatError, ValueError):
            continue


def test_of_a_long_traceback_and_output_the_end_is_kept() -> None:
    long = b"x" * 10**6 + b" the end"
    data = b"<testsuite><testcase name='a'><failure message='m'>" + long + b"</failure></testcase></testsuite>"
    [case] = Reader().parse(data)
    assert case.quote is not None
    assert case.quote.endswith("the end")
    assert len(case.quote) == len("[...]\n") + 4_000


def test_files_are_merged_and_the_worse_of_two_states_counts(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_bytes(b"<testsuite><testcase name='a' time='1'/><testcase name='b'/></testsuite>")
    (tmp_path / "b.xml").write_bytes(b"<testsuite><testcase name='a' time='2'><failure/></testcase></testsuite>")
    first, second = read_junit([tmp_path / "a.xml", tmp_path / "b.xml"], tmp_path)
    assert (first.name, first.state, first.duration_s, first.message) == ("a", "failed", 3, "no message")
    assert second.state == "passed"


def write_cases(path: Path, count: int) -> Path:
    cases = "".join(f"<testcase name='{path.stem}{number}'/>" for number in range(count))
    path.write_text(f"<testsuite>{cases}</testsuite>")
    return path


def test_one_file_and_many_share_one_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(junit, "MOST_CASES", 200)
    full, half, more = (write_cases(tmp_path / name, count) for name, count in (("a", 200), ("b", 100), ("c", 101)))
    assert len(Reader().parse(full.read_bytes())) == 200
    with pytest.raises(ValueError, match="more than 200 tests"):
        Reader().parse(write_cases(tmp_path / "d", 201).read_bytes())
    assert len(read_junit([half, write_cases(tmp_path / "e", 100)], tmp_path)) == 200
    with pytest.raises(InputError, match="its JUnit files have more than 200 tests"):
        read_junit([half, more], tmp_path)


def test_a_file_that_ends_too_early_and_a_link_are_errors_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "cut.xml").write_bytes(PYTEST[:300])
    (tmp_path / "link.xml").symlink_to("/etc/passwd")
    with pytest.raises(InputError, match=r"cut\.xml: not a JUnit file: .*\n?Hint: the file is incomplete"):
        read_junit([tmp_path / "cut.xml"], tmp_path)
    with pytest.raises(InputError, match=r"link\.xml: cannot be read"):
        read_junit([tmp_path / "link.xml"], tmp_path)


@pytest.mark.parametrize(("depth", "read"), [(63, True), (64, True), (65, False)])
def test_elements_may_be_nested_sixty_four_deep(depth: int, read: bool) -> None:
    data = b"<testsuites>" * (depth - 1) + b"<testcase name='a'/>" + b"</testsuites>" * (depth - 1)
    if read:
        assert [case.name for case in Reader().parse(data)] == ["a"]
        return
    with pytest.raises(ValueError, match="nested more than 64 deep"):
        Reader().parse(data)


@pytest.mark.parametrize(("length", "kept"), [(399, 399), (400, 400), (401, 400)])
def test_a_message_has_four_hundred_characters_and_a_name_a_thousand(length: int, kept: int) -> None:
    text = f"<testcase name='{'n' * (length + 600)}'><failure message='{'m' * length}'/></testcase>"
    [case] = Reader().parse(f"<testsuite>{text}</testsuite>".encode())
    assert (len(case.message or ""), len(case.name)) == (kept, kept + 600)


@pytest.mark.parametrize("status", ["notrun", "disabled", "suppressed", "skipped", "run", "completed"])
@pytest.mark.parametrize("attribute", ["status", "result"])
def test_either_attribute_of_googletest_says_that_a_test_did_not_run(attribute: str, status: str) -> None:
    (case,) = Reader().parse(f'<testsuite><testcase name="a" {attribute}="{status}"/></testsuite>'.encode())
    assert case.state == ("passed" if status in ("run", "completed") else "skipped")
