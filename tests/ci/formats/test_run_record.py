"""What a run result may hold, and what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.errors import InputError
from nightjar_ci.formats.run_record import Curve, RunRecord, Sample, read_run
from tests.ci.nights import record

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


def write(path: Path, change: Any) -> Path:
    whole = json.loads(record(0, values=[5.5, 5.1]).model_dump_json(by_alias=True))
    change(whole)
    path.write_text(json.dumps(whole))
    return path


@pytest.mark.parametrize("spelling", ['"NaN"', "NaN"])
def test_a_number_that_is_not_finite_is_read_in_both_spellings(tmp_path: Path, spelling: str) -> None:
    path = write(tmp_path / "result.json", lambda whole: whole["curves"][0].update(values=[5.5, "HERE"]))
    path.write_text(path.read_text().replace('"HERE"', spelling))
    curve = read_run(path).curve("loss")
    assert curve is not None
    assert math.isnan(curve.values[1])


@given(values=st.lists(NUMBERS, min_size=1, max_size=5))
def test_what_is_written_is_read_again(values: list[float]) -> None:
    written = record(0, values=values)
    again = RunRecord.model_validate_json(written.model_dump_json(by_alias=True))
    assert repr(again) == repr(written)  # repr, for nan != nan


def test_steps_and_values_have_one_length(tmp_path: Path) -> None:
    path = write(tmp_path / "result.json", lambda whole: whole["curves"][0].update(values=[5.5]))
    with pytest.raises(InputError, match="2 steps but 1 values"):
        read_run(path)


def test_steps_that_do_not_increase_are_refused() -> None:
    with pytest.raises(ValueError, match="steps must increase"):
        Curve(name="loss", unit="nats", better="lower", steps=(0, 2, 2), values=(1.0, 1.0, 1.0))


def test_a_misspelt_measure_is_refused_with_the_right_name(tmp_path: Path) -> None:
    path = write(tmp_path / "result.json", lambda whole: whole.update(sample=whole.pop("samples")))
    with pytest.raises(InputError, match="unknown key 'sample'") as caught:
        read_run(path)
    assert caught.value.hint == "did you mean 'samples'?"


def test_warm_up_values_do_not_count_unless_nothing_would_be_left() -> None:
    sample = Sample(name="step_time", unit="s", better="lower", values=(9.0, 1.0, 2.0), warmup=1)
    assert sample.steady == (1.0, 2.0)
    assert sample.model_copy(update={"warmup": 3}).steady == (9.0, 1.0, 2.0)


def test_the_key_of_the_facts_is_a_file_name_whatever_the_device_is_called() -> None:
    environment = record(0).environment.model_copy(update={"devices": ("../../NVIDIA A/B",)})
    assert environment.facts_key == "jaxlib-0.10.2-..-..-nvidia-a-b-x1"
