"""Folded stacks hold the time of the ops to the nanosecond."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_profiling.capture_folder.tables import Row, Tables
from nightjar_profiling.export.folded import render_folded
from tests.profiling.attribution.test_apportion import share
from tests.profiling.builders import training_trace
from tests.profiling.conftest import Run
from tests.profiling.report.test_analyse import tables_of
from tests.profiling.report.test_report import make_capture
from tests.profiling.tabled import tables


def folded_ns(data: bytes) -> int:
    return sum(int(line.rpartition(" ")[2]) for line in data.decode().splitlines())


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


@given(ops=OPS, weights=st.lists(st.floats(0.01, 1), max_size=3))
@pytest.mark.slow
def test_an_export_sums_to_the_nanoseconds_of_ops(ops: list[Row], weights: list[float]) -> None:
    found = tables(ops=ops, frames=FRAMES, attribution=[share(weight, n) for n, weight in enumerate(weights)])
    assert folded_ns(render_folded(found)) == sum(op["duration_ns"] for op in ops)


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


def test_export_prints_the_path_of_the_file(run_command: Run, tmp_path: Path) -> None:
    make_capture(tmp_path / "c", training_trace())
    done = run_command("export", "c")
    assert done.stdout == f"{tmp_path / 'c' / 'exports' / 'stacks.folded'}\n"
    assert folded_ns(Path(done.stdout.strip()).read_bytes()) == 100
    assert run_command("export", "c", "--out", "mine").stdout == f"{tmp_path / 'mine'}\n"
    assert (tmp_path / "mine").read_bytes() == Path(done.stdout.strip()).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("export", "none"), r"none/manifest.json: no such file.\nHint: is the folder a capture\?"),
        (("export", "c", "--out", "c"), r"--out: c is a folder, expected a file.\nHint: did you mean"),
    ],
)
def test_a_failed_export_says_why(run_command: Run, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    make_capture(tmp_path / "c", training_trace())
    done = run_command(*arguments)
    assert done.returncode == 2
    assert re.search(message, done.stderr)


def test_the_outermost_place_of_an_estimate_is_its_mark(training: Tables) -> None:
    plain, marked = render_folded(training), render_folded(training, "estimate")
    assert marked.splitlines() == [b"estimate;" + line for line in plain.splitlines()]
