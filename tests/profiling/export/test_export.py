"""Exports are read back by other means than they were written, and hold the time of the ops to the nanosecond."""

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_profiling.capture_folder.tables import Row, Tables
from nightjar_profiling.commands.export import FILES, Format
from nightjar_profiling.export.samples import find_samples, render_folded, render_pprof
from nightjar_profiling.protos import pprof_pb2
from tests.profiling.attribution.test_apportion import share, tables_with
from tests.profiling.builders import training_trace
from tests.profiling.conftest import Run
from tests.profiling.report.test_analyse import tables_of
from tests.profiling.report.test_report import make_capture


def folded_ns(data: bytes) -> int:
    return sum(int(line.rpartition(" ")[2]) for line in data.decode().splitlines())


def pprof_ns(data: bytes) -> int:
    profile = pprof_pb2.Profile.FromString(gzip.decompress(data))
    strings = list(profile.string_table)
    assert strings[0] == ""
    assert [(strings[one.type], strings[one.unit]) for one in profile.sample_type] == [
        ("ops", "count"), ("device", "nanoseconds"),
    ]  # fmt: skip
    locations = {one.id: one for one in profile.location}
    functions = {one.id: one for one in profile.function}
    assert 0 not in locations
    for sample in profile.sample:
        assert {locations[number].line[0].function_id for number in sample.location_id} <= functions.keys()
    return sum(sample.value[1] for sample in profile.sample)


READERS = {Format.FOLDED: folded_ns, Format.PPROF: pprof_ns}
RENDERERS: dict[Format, Callable[..., bytes]] = {Format.FOLDED: render_folded, Format.PPROF: render_pprof}


def some_op(start_ns: int, duration_ns: int, device: int, stream: str, instruction: str | None) -> Row:
    return {
        "rank": device // 2, "device": device, "stream": stream, "kernel": "k;\n\"", "start_ns": start_ns,
        "duration_ns": duration_ns, "program_id": None if instruction is None else 1, "instruction": instruction,
    }  # fmt: skip


FRAMES: list[Row] = [
    {"program_id": 1, "frame_id": 0, "parent_id": None, "file": "/a;b.py", "line": 1, "function": 'ma"in;'},
    {"program_id": 1, "frame_id": 1, "parent_id": 0, "file": "/c.py", "line": 2, "function": "</script>"},
]
OPS = st.lists(
    st.builds(
        some_op,
        st.integers(10**18, 10**18 + 10_000),
        st.integers(0, 5_000),
        st.integers(0, 3),
        st.sampled_from(["s1", "s2"]),
        st.sampled_from(["a", "b;c", None]),
    ),
    max_size=25,
)


@pytest.mark.parametrize("to", list(READERS))
@given(ops=OPS, weights=st.lists(st.floats(0.01, 1), max_size=3))
@pytest.mark.slow
def test_an_export_sums_to_the_nanoseconds_of_ops(to: Format, ops: list[Row], weights: list[float]) -> None:
    tables = tables_with(ops=ops, frames=FRAMES, attribution=[share(weight, n) for n, weight in enumerate(weights)])
    assert READERS[to](RENDERERS[to](tables)) == sum(op["duration_ns"] for op in ops)


@pytest.fixture
def training(tmp_path: Path) -> Tables:
    return tables_of(training_trace(), tmp_path)


def test_the_documented_folded_stacks(training: Tables) -> None:
    main, loss, linear = "main (train.py:9)", "loss (train.py:4)", "Linear.__call__ (linear.py:422)"
    assert render_folded(training).decode().splitlines() == [
        f"{main};{loss};{linear};dot.1 60",
        f"{main};{loss};{linear};fusion.1 30",
        f"{main};{loss};{linear};copy.1 8",
        f"{main};{loss};add.1 2",
    ]


def test_a_pprof_sample_has_its_instruction_innermost_and_its_labels(training: Tables) -> None:
    profile = pprof_pb2.Profile.FromString(gzip.decompress(render_pprof(training)))
    text = profile.string_table
    functions = {one.id: text[one.name] for one in profile.function}
    lines = {one.id: (functions[one.line[0].function_id], one.line[0].line) for one in profile.location}
    first = profile.sample[0]
    assert [lines[number] for number in first.location_id] == [
        ("dot.1", 0), ("Linear.__call__", 422), ("loss", 4), ("main", 9),
    ]  # fmt: skip
    assert list(first.value) == [1, 60]
    labels: dict[str, Any] = {text[one.key]: text[one.str] if one.str else one.num for one in first.label}
    assert labels == {"opcode": "dot", "program": "jit_step", "rank": 0, "device": 0}
    assert text[profile.default_sample_type] == "device"
    assert profile.duration_nanos == 100


@pytest.mark.parametrize("to", list(READERS))
def test_export_prints_the_path_of_the_file(run_command: Run, tmp_path: Path, to: Format) -> None:
    make_capture(tmp_path / "c", training_trace())
    done = run_command("export", "c", "--to", to.value)
    assert done.stdout == f"{tmp_path / 'c' / 'exports' / FILES[to]}\n"
    assert READERS[to](Path(done.stdout.strip()).read_bytes()) == 100
    assert run_command("export", "c", "--to", to.value, "--out", "mine").stdout == f"{tmp_path / 'mine'}\n"
    assert (tmp_path / "mine").read_bytes() == Path(done.stdout.strip()).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export", "none", "--to", "pprof"), r"none/manifest.json: no such file.\nHint: is the folder a capture\?"),
        (("export", "c", "--to", "pprof", "--out", "c"), r"--out: c is a folder, expected a file.\nHint: did you mean"),
        (("export", "c", "--to", "chrome"), r"'chrome' is not one of"),
    ],
)
def test_a_failed_export_says_why(run_command: Run, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    make_capture(tmp_path / "c", training_trace())
    done = run_command(*arguments)
    assert done.returncode == 2
    assert re.search(message, done.stderr)


@pytest.mark.parametrize("to", list(READERS))
def test_estimates_are_marked_in_every_format(training: Tables, to: Format) -> None:
    plain, marked = (RENDERERS[to](training, mark) for mark in ("", "estimate"))
    texts = [gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data for data in (plain, marked)]
    assert [b"estimate" in text for text in texts] == [False, True]
    assert READERS[to](marked) == READERS[to](plain)


def test_the_outermost_place_of_an_estimate_is_its_mark(training: Tables) -> None:
    assert {sample.path[0] for sample in find_samples(training, mark="estimate")} == {("", 0, "estimate")}
