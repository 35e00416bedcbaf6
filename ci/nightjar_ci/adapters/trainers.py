"""Readers for what trainers log: `trainer_state.json` of Hugging Face, and the log lines of MLPerf.

In: a file. Out: records with the logged names and a `step`.

Source: transformers/trainer_callback.py (TrainerState.log_history); mlcommons/logging, mllog (lines `:::MLLOG {...}`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nightjar_ci.adapters.records import Record, flatten, parse_object, read_lines, read_object
from nightjar_ci.errors import InputError

_MARK = ":::MLLOG"
_STEPS = ("step_num", "samples_count", "epoch_num", "epoch_count", "current_epoch_num")


def read_trainer_state(path: Path, *, left_in: Path | None = None) -> Iterator[Record]:
    """The entries of `log_history`."""
    history = read_object(path, left_in).get("log_history")
    if not isinstance(history, list):
        raise InputError(f"{path}: it has no list 'log_history'.", "pass checkpoint-*/trainer_state.json")
    for number, entry in enumerate(history):
        source = f"{path}: log_history[{number}]"
        if not isinstance(entry, dict):
            raise InputError(f"{source}: expected an object, found {type(entry).__name__}.")
        yield Record(source=source, fields=flatten(entry))


def read_mlperf(path: Path, *, left_in: Path | None = None) -> Iterator[Record]:
    """The lines of MLPerf's logger; a line's value is the field that its key names, its metadata are fields as well.

    The step is the first of `step_num`, `samples_count` and `epoch_num` in the metadata.
    """
    for number, line in read_lines(path, left_in):
        _, mark, text = line.partition(_MARK)
        if not mark:
            continue
        source = f"{path}:{number}"
        entry = parse_object(source, text)
        fields = {
            name.partition("metadata.")[2]: value for name, value in entry.items() if name.startswith("metadata.")
        }
        fields |= {name: entry[name] for name in ("event_type", "time_ms") if name in entry}
        step = next((fields[name] for name in _STEPS if name in fields), None)
        if step is not None:
            fields.setdefault("step", step)
        if isinstance(entry.get("key"), str):
            fields[entry["key"]] = entry.get("value")
        yield Record(source=source, fields=fields)
