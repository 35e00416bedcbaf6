"""The JUnit files of a test runner: pytest, unittest-xml-reporting, absltest, ctest, googletest.

In: XML that a job wrote. Out: `Case`s, and what the tests measured. The file is untrusted: no tree is built; document
types (and with them entities) are refused; its depth, its tests and the text that is kept of each are limited.

Source: github.com/testmoapp/junitxml (the dialects); pytest:src/_pytest/junitxml.py; abseil-py:absl/testing/
xml_reporter.py; CMake:Source/CTest/cmCTestTestHandler.cxx; googletest:docs/advanced.md, "Generating an XML Report".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.parsers import expat

from nightjar_ci.errors import InputError
from nightjar_ci.formats.run_record import Sample
from nightjar_ci.formats.suite import WORST_FIRST, Case, CaseState, merge_cases
from nightjar_ci.untrusted.files import read_untrusted

MOST_CASES = 200_000
MOST_MESSAGE = 400
QUOTE_CHARACTERS = 4_000  # of a traceback, and of each output of its test
_MOST_DEPTH = 64
_MOST_NAME = 1_000
_KEPT = 4 * QUOTE_CHARACTERS  # of the text inside one element
_STATES: dict[str, CaseState] = {
    "failure": "failed",
    "error": "failed",
    "flakyFailure": "flaky",  # surefire: it passed in a rerun
    "flakyError": "flaky",
    "skipped": "skipped",
    "disabled": "skipped",
}
_SAY_NOTHING = ("collection failure",)  # pytest's message about a file that it cannot import; the traceback has more
_QUOTED = ("failure", "error", "system-out", "system-err")
_HEADINGS = re.compile(r"^-+ Captured (?:Log|Out|Err) -+$", re.MULTILINE)  # pytest writes them even if nothing follows
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|-?inf"
_MEASURE = re.compile(rf"({_NUMBER}) (?P<unit>\S{{1,40}})(?: (?P<better>higher|lower))?")
_NOT_RUN = ("notrun", "disabled", "suppressed", "skipped")


def read_junit(files: Sequence[Path], folder: Path) -> tuple[Case, ...]:
    """The tests of all files, by name; of two with the same name the worse counts.

    Args:
        files: below `folder`.
    """
    cases: list[Case] = []
    for path in files:
        cases += _read(path, folder).cases
        if len(cases) > MOST_CASES:
            raise InputError(f"{folder}: its JUnit files have more than {MOST_CASES:,} tests.")
    return merge_cases(cases)


def read_measures(files: Sequence[Path], folder: Path) -> list[Sample]:
    """What the tests of all files measured: properties such as `loss` of value "0.12 nats", or "3e4 tokens/s higher"
    if more is better; several of one test and name are the values of one sample."""
    samples: dict[str, Sample] = {}
    for path in files:
        for sample in _read(path, folder).samples:
            earlier = samples.get(sample.name, sample.model_copy(update={"values": ()}))
            samples[sample.name] = earlier.model_copy(update={"values": earlier.values + sample.values})
    return [*samples.values()]


def _read(path: Path, folder: Path) -> Reader:
    reader = Reader()
    try:
        reader.parse(read_untrusted(folder, path.relative_to(folder)))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except (expat.ExpatError, ValueError) as error:
        hint = "the file is incomplete: was its writer killed, or the disk full?"
        early = "no element found" in str(error) or "unclosed token" in str(error)
        raise InputError(f"{path}: not a JUnit file: {error}.", hint if early else None) from None
    return reader


class Reader:
    """The handlers of the parser, with the state of the current test."""

    def __init__(self) -> None:
        self.cases: list[Case] = []
        self.samples: list[Sample] = []
        self._path: list[str] = []
        self._case: dict[str, str] | None = None
        self._state: CaseState | None = None
        self._message: str | None = None
        self._texts: dict[str, str] = {}

    def parse(self, data: bytes) -> list[Case]:
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._refuse_doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.Parse(data, True)
        return self.cases

    def _refuse_doctype(self, name: str, *_: object) -> None:
        raise ValueError(f"it has a document type, {name[:40]!r}, which no test runner writes")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if not self._path and tag not in ("testsuites", "testsuite"):
            raise ValueError(f"its first element is {tag[:40]!r}, expected 'testsuites' or 'testsuite'")
        self._path.append(tag)
        if len(self._path) > _MOST_DEPTH:
            raise ValueError(f"its elements are nested more than {_MOST_DEPTH} deep")
        if tag == "testcase":
            self._case, self._state, self._message, self._texts = attributes, None, None, {}
        elif self._case is not None and tag in _STATES and self._is_worse(_STATES[tag]):
            self._state, self._message = _STATES[tag], attributes.get("message")
            if self._message in _SAY_NOTHING:
                self._message = None
        elif self._case is not None and tag == "property":
            self._measure(_name(self._case), attributes)

    def _measure(self, test: str, attributes: dict[str, str]) -> None:
        measured = _MEASURE.fullmatch(attributes.get("value", ""))
        if measured is not None:
            name, better = f"{test}.{attributes.get('name', '')[:_MOST_NAME]}", measured["better"] or "lower"
            self.samples.append(Sample(name=name, unit=measured["unit"], better=better, values=(float(measured[1]),)))

    def _is_worse(self, state: CaseState) -> bool:
        return self._state is None or WORST_FIRST.index(state) < WORST_FIRST.index(self._state)

    def _text(self, text: str) -> None:
        tag = self._path[-1]
        if self._case is not None and tag in _QUOTED:
            self._texts[tag] = (self._texts.get(tag, "") + text)[-_KEPT:]

    def _end(self, tag: str) -> None:
        self._path.pop()
        if tag != "testcase" or self._case is None:
            return
        if len(self.cases) >= MOST_CASES:
            raise ValueError(f"it has more than {MOST_CASES:,} tests")
        self.cases.append(self._make_case(self._case))
        self._case = None

    def _make_case(self, attributes: dict[str, str]) -> Case:
        state = self._state or "passed"
        if self._state is None and {attributes.get("status"), attributes.get("result")} & {*_NOT_RUN}:
            state = "skipped"
        message, quote = None, None
        if state in ("failed", "flaky"):
            trace = self._texts.get("failure") or self._texts.get("error") or ""
            message = _first_words(self._message or "") or _last_line(trace) or "no message"
            quote = "\n".join(self._quote()) or None
        elif state == "skipped" and self._message:
            message = _first_line(self._message)
        return Case(
            name=_name(attributes),
            state=state,
            duration_s=_read_seconds(attributes.get("time", "")),
            node=_find_node(attributes),
            message=message,
            quote=quote,
        )

    def _quote(self) -> Iterable[str]:
        for tag in _QUOTED:
            text = self._texts.get(tag, "").strip()
            if tag.startswith("system"):
                text = _HEADINGS.sub("", text).strip()
            if not text:
                continue
            if tag.startswith("system"):
                yield f"-- the end of its {tag.replace('system-', 'std')}:"
            if len(text) > QUOTE_CHARACTERS:
                yield "[...]"
            yield text[-QUOTE_CHARACTERS:]


def _name(attributes: dict[str, str]) -> str:
    """Class and name; ctest writes the name twice, and pytest names no class for a file that it cannot import."""
    group, name = attributes.get("classname", "").strip(), attributes.get("name", "").strip()
    parts = [part for part in (group, name) if part]
    if group == name:
        parts = parts[:1]
    return " ".join(".".join(parts).split())[:_MOST_NAME] or "no name"


def _find_node(attributes: dict[str, str]) -> str | None:
    """The node id of pytest, from the file that its family `xunit1` names.

    >>> _find_node({"file": "tests/test_a.py", "classname": "tests.test_a.TestB", "name": "test_c[1]"})
    'tests/test_a.py::TestB::test_c[1]'
    >>> _find_node({"classname": "a.B", "name": "c"})
    """
    file, group = attributes.get("file", ""), attributes.get("classname", "")
    if not file.endswith(".py") or len(file) > _MOST_NAME or not attributes.get("name"):
        return None
    stem = re.sub(r"[/\\]", ".", file.removesuffix(".py"))
    classes: list[str] = []
    if group != stem:
        matched = re.search(rf"(?:^|\.){re.escape(stem.rpartition('.')[2])}\.(.+)$", group)
        if matched is None:
            return None
        classes = matched[1].split(".")
    return "::".join([file, *classes, attributes["name"]])


def _read_seconds(text: str) -> float:
    """A duration; 0 if it is not a number; thousands may have commas."""
    try:
        seconds = float(text.replace(",", ""))
    except ValueError:
        return 0.0
    return seconds if 0 <= seconds < 1e9 else 0.0


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")[:MOST_MESSAGE]


def _first_words(text: str) -> str:
    """The first informative line; NumPy's messages begin with an empty one after the name of the error.

    >>> _first_words("AssertionError: \\nArrays are not equal\\n\\nMismatched elements: 1 / 3")
    'AssertionError: Arrays are not equal'
    """
    marked = [line[1:] for line in text.splitlines() if line.startswith("E  ")]  # of a fixture that is not there
    lines = [line.strip() for line in marked or text.splitlines() if line.strip()]
    end = 2 if lines and lines[0].endswith(":") else 1
    return " ".join(lines[:end])[:MOST_MESSAGE]


def _last_line(text: str) -> str:
    """The last line of a traceback, without pytest's mark of an error; the first, too, if the last is advice."""
    last = _first_line("\n".join(reversed(text.splitlines()))).removeprefix("E  ").strip()
    if last.startswith("HINT:"):
        return f"{_first_line(text)} {last}"
    return last
