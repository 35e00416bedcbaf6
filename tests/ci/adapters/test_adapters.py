"""Conversion of other programs' logs and files; errors name file and line."""

import json
import math
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.adapters import read_adapter
from nightjar_ci.adapters.machine import find_gpus, read_machine
from nightjar_ci.cli import main
from nightjar_ci.errors import InputError
from nightjar_ci.formats.run_record import read_run
from tests.called import call
from tests.ci.adapters.test_formats import convert, wrote
from tests.stand_ins import put_on_path

LOSS = [{"field": "loss", "unit": "nats"}]
TIME = [{"field": "seconds", "unit": "s", "warmup": 1}]


def test_a_log_becomes_a_curve_and_a_sample(tmp_path: Path) -> None:
    log = wrote(
        tmp_path / "log", "hello\nstep 1 loss 3.5 in 9 s\nnoise\nstep 2 loss nan in 1e-1 s\nstep 3 loss 2 in 0.2 s"
    )
    record = convert(
        log,
        format="log",
        pattern=r"step (?P<step>\d+) loss (?P<loss>\S+) in (?P<seconds>\S+) s",
        curve=LOSS,
        sample=TIME,
    )
    (curve,), (sample,) = record.curves, record.samples
    assert (curve.name, curve.unit, curve.steps) == ("loss", "nats", (1, 2, 3))
    assert curve.values[0] == 3.5
    assert math.isnan(curve.values[1])
    assert (sample.values, sample.steady, sample.unit) == ((9.0, 0.1, 0.2), (0.1, 0.2), "s")
    assert (record.job, record.seed, record.status) == ("j", 3, "completed")


def test_records_without_a_step_are_counted(tmp_path: Path) -> None:
    log = wrote(tmp_path / "log", "loss=3\nx\nloss=2\n")
    (curve,) = convert(log, format="log", pattern=r"loss=(?P<loss>\d)", curve=LOSS).curves
    assert (curve.steps, curve.values) == ((0, 1), (3.0, 2.0))


def test_steps_that_a_resumed_program_repeats_replace_the_earlier_ones(tmp_path: Path) -> None:
    lines = [{"step": step, "loss": loss} for step, loss in [(0, 5.0), (1, 4.0), (2, 9.0), (1, 4.5), (2, 3.0)]]
    path = wrote(tmp_path / "m.jsonl", "".join(f"{json.dumps(line)}\n" for line in [*lines, {"loss": None}]))
    (curve,) = convert(path, format="jsonl", curve=LOSS).curves
    assert (curve.steps, curve.values) == ((0, 1, 2), (5.0, 4.5, 3.0))


def test_json_lines_are_chosen_by_where_and_nested_names_are_dotted(tmp_path: Path) -> None:
    lines = [
        {"event": "log", "at": {"step": 7}, "metrics": {"train/loss": 2.5, "eval/a": 1, "eval/b": 2}},
        {"event": "summary", "metrics": {"train/loss": 0}},
    ]
    path = wrote(tmp_path / "m.jsonl", "\n\n".join(map(json.dumps, lines)))
    measures = [{"field": "metrics.train/loss", "name": "loss"}, {"field": "metrics.eval/*"}]
    curves = convert(path, format="jsonl", step="at.step", where={"event": "log"}, curve=measures).curves
    found = {curve.name: (curve.steps, curve.values) for curve in curves}
    assert found == {"loss": ((7,), (2.5,)), "metrics.eval/a": ((7,), (1.0,)), "metrics.eval/b": ((7,), (2.0,))}


@pytest.mark.parametrize(
    ("values", "steps", "nulls"),
    [
        ([3, 2, None, 1, None], (0, 1, 2, 3, 4), {2, 4}),
        ([None, 3, None, None, 2, None, None, 1, None], (1, 4, 7), set()),
        ([3, None, 2, None, 1, None, None, None], (0, 2, 4, 6, 7), {6, 7}),
        ([None, None, 1, None], (2,), set()),
    ],
)
def test_a_null_is_nan_when_a_value_is_due(
    tmp_path: Path, values: list[int | None], steps: tuple[int, ...], nulls: set[int]
) -> None:
    path = wrote(tmp_path / "m.jsonl", "\n".join(json.dumps({"loss": value}) for value in values))
    (curve,) = convert(path, format="jsonl", curve=LOSS).curves
    assert curve.steps == steps
    assert {step for step, value in zip(curve.steps, curve.values, strict=True) if math.isnan(value)} == nulls


def test_csv_leaves_out_empty_cells_and_scales_by_a_factor(tmp_path: Path) -> None:
    path = wrote(tmp_path / "m.csv", 'step, loss ,ms\n0,"3.5",100\n1,,200\n\n2,2.5,300\n')
    record = convert(
        path, format="csv", curve=LOSS, sample=[{"field": "ms", "name": "step_time", "unit": "s", "factor": 1e-3}]
    )
    assert (record.curves[0].steps, record.curves[0].values) == ((0, 2), (3.5, 2.5))
    assert record.samples[0].values == pytest.approx((0.1, 0.2, 0.3))


LOG = {"format": "log", "pattern": r"loss (?P<loss>\S+)"}
LINES, CSV = {"format": "jsonl"}, {"format": "csv"}


@pytest.mark.parametrize(
    ("text", "keys", "message"),
    [
        ("x\nloss abc\n", LOG, "file:2: loss is 'abc', expected a number"),
        ("x\n", LOG, r"file: no line matches 'loss (?P<loss>\S+)'"),
        ('{"step": 0, "loss": 1}\n{"step": 1, "lo', LINES, "file:2: not valid JSON: Unterminated"),
        ("[1]\n", LINES, "file:1: expected a JSON object, found '[1]'"),
        ('{"step": 1.5, "loss": 1}', LINES, "file:1: step is 1.5, expected a whole number"),
        ('{"loss": true}', LINES, "file:1: loss is True, expected a number"),
        ('{"loss": 1}', {**LINES, "step": "epoch"}, "file:1: no field 'epoch', found loss"),
        ('{"step": 0, "loss": 1}\n{"loss": 1}', LINES, "file:2: no field 'step'"),
        ('{"step": 0, "Loss": 1}', LINES, "no value of 'loss' in 1 records, found Loss, step"),
        ("step,loss\n0,1\n1\n", CSV, "file:3: 1 cells, expected 2 (step, loss)"),
        ("", CSV, "file: empty"),
    ],
)
def test_an_unreadable_line_is_named_by_number(tmp_path: Path, text: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        convert(wrote(tmp_path / "file", text), **keys, curve=LOSS)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("format = 'log'\ncurve = [{field = 'x'}]", "needs a pattern"),
        ("format = 'log'\npattern = '(?P<x'\ncurve = [{field = 'x'}]", "not a valid regular expression"),
        ("format = 'log'\npattern = 'x'\ncurve = [{field = 'x'}]", "needs a named group"),
        ("format = 'csv'\npattern = '(?P<x>.)'\ncurve = [{field = 'x'}]", "no other format has one"),
        ("format = 'csv'", "at least one"),
        ("format = 'csvv'", "format: Input should be 'log', 'json', 'jsonl', 'csv'"),
        (
            "format = 'asv'\ncurve = [{field = 'x'}]",
            "adapter.toml: format = 'asv' names its metrics itself: leave out curve, sample, where, step.",
        ),
        ("format = 'csv'\nfile = '../x'\ncurve = [{field = 'x'}]", "inside the job's folder"),
        ("format = 'csv'\ncurve = [{filed = 'x'}]", "did you mean 'field'?"),
    ],
)
def test_a_mistake_in_an_adapter_is_named(tmp_path: Path, toml: str, message: str) -> None:
    path = wrote(tmp_path / "adapter.toml", f'schema = "nightjar.adapter/1"\n{toml}\n')
    with pytest.raises(InputError) as caught:
        read_adapter(path)
    assert message in str(caught.value)


PYTEST_BENCHMARK = {
    "benchmarks": [
        {
            "name": "test_sum[10]",
            "fullname": "test_b.py::test_sum[10]",
            "stats": {"median": 2e-7, "data": [3e-7, 1e-7]},
        },
        {"name": "test_x", "fullname": "a.py::test_x", "stats": {"median": 5e-3}},
        {"name": "test_x", "fullname": "b.py::test_x", "stats": {"median": 6e-3}},
    ],
    "version": "5.3.1",
}
ASV = {
    "commit_hash": "9c880f7c",
    "result_columns": ["result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b",
                       "stats_q_25", "stats_q_75", "stats_number", "stats_repeat", "samples", "profile"],
    "results": {
        "b.S.time_sum": [[8.3e-7, None, math.nan], [["10", "20", "30"]], "12", 1, 3.5, [1], [1], [1], [1], [1], [2],
                         [[7.3e-7, 9.3e-7], None, None]],
        "b.time_plain": [[5.7e-7], [], "f7", 1, 1.9, [4e-7], [9e-7], [4e-7], [8e-7], [69428], [2], [[5e-7, 6e-7]]],
        "b.peakmem_x": [[26927104, 26927105], [["10", "20"]], "9a", 1, 1.8],
        "b.track_n": [[10], [["'a'"]], "53", 1, 1.5],
        "b.time_failed": [None, [], "53", 1, 1.5],
    },
    "version": 2,
}  # fmt: skip


def test_benchmarks_of_pytest_are_samples_in_seconds(tmp_path: Path) -> None:
    path = wrote(tmp_path / "b.json", json.dumps(PYTEST_BENCHMARK))
    samples = convert(path, format="pytest-benchmark").samples
    assert {one.name: one.values for one in samples} == {
        "test_sum[10]": (3e-7, 1e-7),
        "a.py::test_x": (5e-3,),
        "b.py::test_x": (6e-3,),
    }
    assert {(one.unit, one.better) for one in samples} == {("s", "lower")}


def test_benchmarks_of_asv_are_samples_for_each_combination_of_parameters(tmp_path: Path) -> None:
    samples = convert(wrote(tmp_path / "a.json", json.dumps(ASV)), format="asv").samples
    assert {one.name: (one.values, one.unit) for one in samples} == {
        "b.S.time_sum(10)": ((7.3e-7, 9.3e-7), "s"),
        "b.time_plain": ((5e-7, 6e-7), "s"),
        "b.peakmem_x(10)": ((26927104.0,), "bytes"),
        "b.peakmem_x(20)": ((26927105.0,), "bytes"),
        "b.track_n('a')": ((10.0,), ""),
    }


def test_the_command_prints_a_result_that_is_read_back(tmp_path: Path) -> None:
    log = wrote(tmp_path / "m.csv", "step,loss\n0,3\n1,2\n")
    toml = wrote(
        tmp_path / "adapter.toml", 'schema = "nightjar.adapter/1"\nformat = "csv"\ncurve = [{ field = "loss" }]\n'
    )
    record = read_run(wrote(tmp_path / "result.json", call(main, "adapt", log, "--with", toml).stdout))
    assert (record.job, record.seed, record.curves[0].values) == ("adapted", 0, (3.0, 2.0))


def test_gpus_and_driver_are_those_of_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "echo 'NVIDIA H100 80GB HBM3, 570.86.15'\n"
    put_on_path(monkeypatch, tmp_path, {"nvidia-smi": f"#!/bin/sh\n{said}{said}"})
    assert find_gpus() == (("NVIDIA H100 80GB HBM3",) * 2, "570.86.15")
    assert re.match(r"2 x NVIDIA H100 80GB HBM3; driver 570\.86\.15; ", read_machine("current", None).measured_on)


@given(
    st.dictionaries(st.integers(0, 10**6), st.floats(allow_nan=False), min_size=1, max_size=30),
    st.sampled_from(["jsonl", "csv"]),
)
def test_whatever_numbers_are_written_are_read(by_step: dict[int, float], name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = [f"{step},{value!r}" for step, value in by_step.items()]
        text = "\n".join(["step,loss", *rows])
        if name == "jsonl":
            text = "\n".join(json.dumps({"step": step, "loss": value}) for step, value in by_step.items())
        (curve,) = convert(wrote(Path(folder) / "m", text), format=name, curve=LOSS).curves
    assert dict(zip(curve.steps, curve.values, strict=True)) == by_step
