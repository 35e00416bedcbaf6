"""Whoever waits for a run is told what it does."""

import time

import pytest

from nightjar_models.training import progress
from nightjar_models.training.progress import show_progress


def test_plain_lines_say_what_begins_and_every_tenth_of_the_steps(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("gpt", 20) as shown:
        shown.phase("compiling the train step")
        for step in range(1, 6):
            shown.step(step, 2.5)
    assert capsys.readouterr().err.splitlines() == [
        "gpt: compiling the train step",
        "gpt: step 2/20, loss 2.5000",
        "gpt: step 4/20, loss 2.5000",
    ]


def test_a_long_silence_is_broken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SILENT_S", 0.05)
    with show_progress("gpt", 20) as shown:
        shown.phase("compiling the train step")
        said = ""
        while said.count("\n") < 3:
            time.sleep(0.01)
            said += capsys.readouterr().err
    first, *again = said.splitlines()
    assert first == "gpt: compiling the train step"
    assert set(again) == {"gpt: compiling the train step (0 s)"}
    time.sleep(0.1)
    assert not capsys.readouterr().err, "nothing is said once all is done"


def test_only_one_of_several_processes_speaks(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("gpt", 20, shown=False) as shown:
        shown.phase("compiling the train step")
        shown.step(20, 2.5)
    assert not capsys.readouterr().err
