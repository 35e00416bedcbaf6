"""Tables in few words: rows with only the columns that a test is about."""

from collections.abc import Iterable, Mapping
from typing import Any

from nightjar_profiling.capture_folder.tables import SCHEMAS, Tables, make_table

Rows = Iterable[Mapping[str, Any]]
OP = {"rank": 0, "device": 0, "program_id": 1, "execution": 0, "stream": "s", "kernel": "k", "kind": "kernel"}
RUN = {"rank": 0, "device": 0, "program_id": 1, "execution": 0}


def op(instruction: str | None, start_ns: int, duration_ns: int, **more: Any) -> dict[str, Any]:
    """A row of `ops`, on device 0 of rank 0 in execution 0 of program 1."""
    return {**OP, "instruction": instruction, "start_ns": start_ns, "duration_ns": duration_ns, **more}


def collective(instruction: str, start_ns: int, duration_ns: int, **more: Any) -> dict[str, Any]:
    """A row of `collectives`: an all-reduce of 1000 bytes on two devices that are known to be a group."""
    known = {**RUN, "kind": "all-reduce", "message_bytes": 1000, "group_size": 2, "wait_ns": 0}
    return {**known, "instruction": instruction, "start_ns": start_ns, "duration_ns": duration_ns, **more}


def tables(**rows: Rows) -> Tables:
    """All tables; those not named are empty."""
    return Tables(**{name: make_table(name, rows.get(name, ())) for name in SCHEMAS})
