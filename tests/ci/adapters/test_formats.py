"""Files of other programs: benchmark runners, trainers, spreadsheets; what is ambiguous is refused by name."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from nightjar_ci.adapters import Adapter
from nightjar_ci.adapters.convert import About, adapt, find_files
from nightjar_ci.adapters.machine import read_machine
from nightjar_ci.adapters.tensorboard import checksum
from nightjar_ci.errors import InputError
from nightjar_ci.formats.policy import Policies
from nightjar_ci.formats.run_record import RunRecord

ABOUT = About(
    job="j",
    workload="w",
    seed=3,
    started_at="2026-11-21T03:00:00+00:00",
    duration_s=1.0,
    environment=read_machine("current", None),
)
LOSS = [{"field": "loss"}]


def convert(*paths: Path, **keys: Any) -> RunRecord:
    return adapt(paths, Adapter.model_validate(keys), ABOUT)


def wrote(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def samples(record: RunRecord) -> dict[str, tuple[float, ...]]:
    return {sample.name: sample.values for sample in record.samples}


def test_json_is_one_record_or_a_list_of_them(tmp_path: Path) -> None:
    one = wrote(tmp_path / "all_results.json", '{"train": {"runtime": 93.4}, "runs": [{"s": 1}, {"s": 2}]}')
    found = samples(convert(one, format="json", sample=[{"field": "train.runtime"}, {"field": "runs.*.s"}]))
    assert found == {"train.runtime": (93.4,), "runs.0.s": (1.0,), "runs.1.s": (2.0,)}
    many = wrote(tmp_path / "many.json", '[{"step": 1, "loss": 3.0}, {"step": 5, "loss": 2.0}]')
    (curve,) = convert(many, format="json", curve=LOSS).curves
    assert (curve.steps, curve.values) == ((1, 5), (3.0, 2.0))


def test_github_action_benchmark_gives_its_entries(tmp_path: Path) -> None:
    entries = [
        {"name": "step", "unit": "ms", "value": 41.5},
        {"name": "memory", "unit": "MiB", "value": 8, "range": "4"},
    ]
    path = wrote(tmp_path / "b.json", json.dumps(entries))
    found = [(one.name, one.unit, one.values) for one in convert(path, format="github-action-benchmark").samples]
    assert found == [("step", "ms", (41.5,)), ("memory", "MiB", (8.0,))]
    twice = wrote(tmp_path / "twice.json", json.dumps(entries[:1] * 2))
    with pytest.raises(InputError, match="2 benchmarks are named 'step'"):
        convert(twice, format="github-action-benchmark")


def test_google_benchmark_gives_its_repetitions_in_seconds(tmp_path: Path) -> None:
    run = {"run_name": "BM_Sum/8", "run_type": "iteration", "time_unit": "us"}
    entries = [
        {**run, "name": "BM_Sum/8", "real_time": 12.0},
        {**run, "name": "BM_Sum/8", "real_time": 14.0},
        {**run, "name": "BM_Sum/8_mean", "run_type": "aggregate", "aggregate_name": "mean", "real_time": 13.0},
        {"name": "BM_Old", "real_time": 5.0},
        {"name": "BM_Bad", "real_time": 0.0, "error_occurred": True},
        {"name": "BM_Skipped", "real_time": 0.0, "skipped": True},
        {"name": "BM_Sum_BigO", "run_type": "aggregate", "aggregate_name": "BigO", "big_o": "N"},
        {"name": "BM_Sum_RMS", "run_type": "aggregate", "aggregate_name": "RMS", "rms": 0.04},
        {
            **run,
            "name": "BM_Agg_median",
            "run_name": "BM_Agg",
            "run_type": "aggregate",
            "aggregate_name": "median",
            "real_time": 2.0,
        },
    ]
    path = wrote(tmp_path / "b.json", json.dumps({"context": {}, "benchmarks": entries}))
    assert samples(convert(path, format="google-benchmark")) == {
        "BM_Agg": (pytest.approx(2e-6),),
        "BM_Sum/8": (pytest.approx(12e-6), pytest.approx(14e-6)),
        "BM_Old": (pytest.approx(5e-9),),
    }


@pytest.mark.parametrize(
    ("keys", "text", "message"),
    [
        ({"format": "google-benchmark"}, "[]", "expected a JSON object"),
        ({"format": "json", "curve": LOSS}, "[3]", r"f\[0\]: expected a JSON object, found int"),
        ({"format": "github-action-benchmark"}, '[{"name": "x"}]', "KeyError: 'value'"),
        ({"format": "github-action-benchmark"}, '{"x": 1}', "not a list of names"),
        ({"format": "google-benchmark"}, '{"benchmarks": [{"name": "x"}]}', "KeyError: 'real_time'"),
        ({"format": "trainer-state", "curve": LOSS}, "{}", "no list 'log_history'"),
        ({"format": "mlperf", "curve": LOSS}, ":::MLLOG {", ":1: not valid JSON"),
        ({"format": "csv", "curve": LOSS}, "step,loss\n0,1_5\n", "loss is '1_5', expected a number"),
        ({"format": "pytest-benchmark"}, "{}", "no list 'benchmarks'"),
        ({"format": "pytest-benchmark"}, '{"benchmarks": [{"name": "x"}]}', "KeyError: 'stats'"),
        ({"format": "pytest-benchmark"}, '{"benchmarks": []}', "no benchmark has a result"),
        ({"format": "asv"}, '{"version": 3}', "version 3, expected asv's version 1 or 2"),
        (
            {"format": "asv"},
            '{"version": 2, "result_columns": ["result"], "results": {"a": 3}}',
            "not a valid asv result",
        ),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, keys: dict[str, Any], text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        convert(wrote(tmp_path / "f", text), **keys)


def test_the_state_of_a_hugging_face_trainer_has_curves(tmp_path: Path) -> None:
    history = [
        {"epoch": 0.1, "loss": 5.0, "learning_rate": 1e-3, "step": 10},
        {"epoch": 0.2, "loss": 4.0, "step": 20},
        {"epoch": 0.2, "eval_loss": 4.5, "step": 20},
    ]
    path = wrote(tmp_path / "trainer_state.json", json.dumps({"global_step": 20, "log_history": history}))
    record = convert(path, format="trainer-state", curve=[{"field": "*loss"}])
    assert {curve.name: (curve.steps, curve.values) for curve in record.curves} == {
        "loss": ((10, 20), (5.0, 4.0)),
        "eval_loss": ((20,), (4.5,)),
    }


def test_a_log_of_mlperf_has_a_curve_by_samples(tmp_path: Path) -> None:
    lines = [
        {"key": "run_start", "value": None, "metadata": {"file": "a.py", "lineno": 3}},
        {"key": "eval_accuracy", "value": 0.31, "metadata": {"samples_count": 100}},
        {"key": "eval_accuracy", "value": 0.42, "metadata": {"samples_count": 200}},
    ]
    text = "noise\n" + "".join(f"0: :::MLLOG {json.dumps(line)}\n" for line in lines)
    record = convert(wrote(tmp_path / "log", text), format="mlperf", curve=[{"field": "eval_accuracy"}])
    assert (record.curves[0].steps, record.curves[0].values) == ((100, 200), (0.31, 0.42))


def test_the_columns_of_lightning_are_empty_where_they_do_not_belong(tmp_path: Path) -> None:
    path = wrote(tmp_path / "metrics.csv", "epoch,step,train_loss,val_loss\n0,9,3.5,\n0,19,3.1,\n0,19,,3.3\n")
    record = convert(path, format="csv", curve=[{"field": "*_loss"}])
    assert {curve.name: curve.steps for curve in record.curves} == {"train_loss": (9, 19), "val_loss": (19,)}


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_table_is_read_with_its_delimiter_and_the_mark_of_byte_order(tmp_path: Path, delimiter: str) -> None:
    text = '\ufeffstep,"loss, mean"\r\n0,5.5\r\n1,4.5\r\n'.replace(",", delimiter)
    record = convert(wrote(tmp_path / "t.csv", text), format="csv", curve=[{"field": "loss*"}])
    assert record.curves[0].values == (5.5, 4.5)


def test_a_decimal_comma_is_read_where_it_is_said_and_named_where_not(tmp_path: Path) -> None:
    path = wrote(tmp_path / "t.csv", "step;loss\n0;5,5\n1;4,5e-1\n")
    assert convert(path, format="csv", decimal=",", curve=LOSS).curves[0].values == (5.5, 0.45)
    with pytest.raises(InputError, match="loss is '5,5', expected a number") as caught:
        convert(path, format="csv", curve=LOSS)
    assert caught.value.hint == "where a comma is the decimal sign, set decimal = ','"


def test_a_column_that_the_header_has_twice_is_refused_where_it_is_measured(tmp_path: Path) -> None:
    path = wrote(tmp_path / "t.csv", "step,loss,other,loss\n0,5,1,6\n")
    assert convert(path, format="csv", curve=[{"field": "other"}]).curves[0].values == (1.0,)
    with pytest.raises(InputError, match="loss is ambiguous, as the header has the name more than once"):
        convert(path, format="csv", curve=LOSS)


def test_two_processes_in_one_log_are_refused_and_a_resumed_run_is_not(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"format": "jsonl", "curve": LOSS}
    both = [{"host": host, "step": step, "loss": 5 + host - step / 9} for step in range(9) for host in (0, 1)]
    for order in (sorted(both, key=lambda record: record["host"]), both):
        path = wrote(tmp_path / "both", "\n".join(map(json.dumps, order)))
        with pytest.raises(InputError, match="step 0 has two values of loss, 5 and 6, and so have 8 other steps of 9"):
            convert(path, **keys)
    assert len(convert(path, where={"host": 1}, **keys).curves[0].values) == 9
    resumed = [{"step": step, "loss": 5.0 - number / 9} for number, step in enumerate([*range(9), *range(5, 12)])]
    assert convert(wrote(tmp_path / "r", "\n".join(map(json.dumps, resumed))), **keys).curves[0].steps[-1] == 11


def event(step: int, value: float) -> bytes:
    simple = b"\x0a\x04loss\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(simple)]) + simple
    message = b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary
    header = struct.pack("<Q", len(message))
    return header + struct.pack("<I", checksum(header)) + message + struct.pack("<I", checksum(message))


def test_a_cut_file_of_a_first_attempt_ends_where_it_ends_and_a_cut_last_file_is_refused(tmp_path: Path) -> None:
    first = wrote(tmp_path / "events.1", event(1, 5.0) + event(2, 4.0) + event(3, 9.0)[:-6])
    second = wrote(tmp_path / "events.2", event(3, 3.0) + event(4, 2.0))
    keys: dict[str, Any] = {"format": "tensorboard", "curve": LOSS}
    assert convert(first, second, **keys).curves[0].values == (5.0, 4.0, 3.0, 2.0)
    with pytest.raises(InputError, match="incomplete"):
        convert(second, first, **keys)


def test_names_with_brackets_match_as_they_are_and_as_globs(tmp_path: Path) -> None:
    path = wrote(tmp_path / "t.csv", "step,test[1024-float32],test[2-f]\n0,5,6\n")
    assert len(convert(path, format="csv", curve=[{"field": "test[1024-*"}]).curves) == 1
    policies = Policies.model_validate(
        {"schema": "nightjar.policies/1", "history": [{"measure": "test[1024-float32]"}, {"measure": "loss_[ab]"}]}
    )
    assert policies.for_history("cell", "test[1024-float32]") is not None
    assert policies.for_history("cell", "loss_b") is not None


@pytest.mark.parametrize(("twice", "steps", "refused"), [(2, 4, False), (3, 6, True), (3, 7, False), (4, 7, True)])
def test_three_steps_with_two_values_that_are_half_of_all_are_two_processes(
    tmp_path: Path, twice: int, steps: int, refused: bool
) -> None:
    lines = [
        {"step": step, "loss": value} for step in range(steps) for value in ((1.0, 2.0) if step < twice else (1.0,))
    ]
    path = wrote(tmp_path / "log", "\n".join(map(json.dumps, lines)))
    if refused:
        with pytest.raises(InputError, match="has two values of loss"):
            convert(path, format="jsonl", curve=LOSS)
    else:
        assert len(convert(path, format="jsonl", curve=LOSS).curves[0].values) == steps


def test_folders_with_other_values_of_one_curve_are_refused(tmp_path: Path) -> None:
    paths = []
    for folder, value in (("train", 1.0), ("validation", 2.0)):
        (tmp_path / folder).mkdir()
        lines = "\n".join(json.dumps({"step": step, "loss": value}) for step in range(4))
        paths.append(wrote(tmp_path / folder / "log.jsonl", lines))
    with pytest.raises(InputError, match=r"4 steps have other values of loss in .*train than in .*validation"):
        convert(*paths, format="jsonl", curve=LOSS)


@pytest.mark.parametrize(
    ("line", "keys", "said"),
    [
        ({"a": 1, "b": 2}, {"sample": [{"field": "a", "name": "x"}, {"field": "b", "name": "x"}]}, "two measures are"),
        (
            {"split": "test", "loss": 1},
            {"curve": LOSS, "where": {"split": "train"}},
            "no record with {'split'",
        ),
        ({f"f{n:02}": n for n in range(20)}, {"curve": LOSS}, "in 1 records, found f00, .*, f19\\.$"),
        ({f"f{n:02}": n for n in range(21)}, {"curve": LOSS}, "found f00, .*, f19 and 1 more"),
    ],
)
def test_what_is_not_found_or_ambiguous_is_named(
    tmp_path: Path, line: dict[str, Any], keys: dict[str, Any], said: str
) -> None:
    path = wrote(tmp_path / "log", json.dumps({"step": 0, **line}).replace('"step": 0, "f00"', '"f00"'))
    with pytest.raises(InputError, match=said):
        convert(path, format="jsonl", **keys)


def test_a_job_without_the_file_is_told_what_it_left(tmp_path: Path) -> None:
    adapter = Adapter.model_validate({"format": "jsonl", "file": "*.jsonl", "curve": LOSS})
    with pytest.raises(InputError, match=r"no file matches '\*\.jsonl', found nothing"):
        find_files(tmp_path, adapter)
    for name in ("b.txt", "a.txt"):
        wrote(tmp_path / name, "")
    with pytest.raises(InputError, match=r"found a\.txt, b\.txt"):
        find_files(tmp_path, adapter)
