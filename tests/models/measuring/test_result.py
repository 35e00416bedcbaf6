"""A result is written whole or not at all, and says what JSON cannot."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_models.errors import OutputError
from nightjar_models.measuring.result import Curve, ResultFile, Run, Sample, dump


@given(st.lists(st.floats(allow_nan=False)))
def test_every_number_is_read_back_exactly(values: list[float]) -> None:
    assert [float(value) for value in json.loads(dump(values))] == values


def test_a_result_replaces_an_earlier_one(tmp_path: Path) -> None:
    for number in (1, 2):
        file = ResultFile(tmp_path)
        file.write({"number": number})
    assert json.loads(file.path.read_text()) == {"number": 2}
    assert [(entry.name, oct(entry.stat().st_mode)) for entry in tmp_path.iterdir()] == [("result.json", "0o100644")]


def test_a_file_where_the_folder_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(OutputError, match=r"out: cannot be written: File exists"):
        ResultFile(tmp_path / "out")


def test_a_folder_that_has_gone_is_named(tmp_path: Path) -> None:
    file = ResultFile(tmp_path / "gone")
    file.folder.rmdir()
    with pytest.raises(OutputError, match=r"result\.json: cannot be written: No such file") as caught:
        file.write({})
    assert caught.value.exit_code == 3


def test_a_document_has_the_subject_of_its_run_and_then_all_measures(tmp_path: Path) -> None:
    curve = Curve(name="loss", unit="nats", better="lower", steps=[0, 5], values=[2.0, 1.0])
    sample = Sample(name="step_time", unit="s", better="lower", values=[0.5])
    run = Run(status="completed", config={"width": 8}, curves=[curve], samples=[sample], facts=[{"program": "step"}])
    document = ResultFile(tmp_path).render(run, {"python": "3.12"}, job="llama-cpu", workload="llama")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", document.pop("started_at"))
    assert 0 <= document.pop("duration_s") < 60
    assert document == {
        **{"schema": "nightjar.run/1", "job": "llama-cpu", "workload": "llama", "seed": 0, "status": "completed"},
        **{"environment": {"python": "3.12"}, "config": {"width": 8}, "facts": [{"program": "step"}]},
        "curves": [{"name": "loss", "unit": "nats", "better": "lower", "steps": [0, 5], "values": [2.0, 1.0]}],
        "samples": [{"name": "step_time", "unit": "s", "better": "lower", "values": [0.5], "warmup": 0}],
    }
