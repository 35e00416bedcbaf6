"""The results of a profile job: `nightjar.profile/1` and the flame graph next to it.

In: the capture folder of a job (docs/reference/capture-folder.md). Out: a `Profile`, and the Plotly figure of its flame
graph.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from pydantic import Field

from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import StrictModel, read_document
from nightjar_ci.formats.run_record import describe_devices, read_run
from nightjar_ci.untrusted.files import read_untrusted

PROFILE_SCHEMA = "nightjar.profile/1"


class HotLine(StrictModel):
    """A Python line with the device time of its instructions."""

    file: str
    line: int
    function: str
    source: str | None
    self_ns: int
    fraction: float
    busy_ns: int | None = None


class Profile(StrictModel):
    """The summary of a capture: `nightjar.profile/1`; fields that older captures lack have defaults."""

    schema_: Annotated[Literal["nightjar.profile/1"], Field(alias="schema")]
    backend: str
    command: tuple[str, ...]
    steps: tuple[int, int] | None
    device_time_ns: int
    direct_fraction: float
    inferred_fraction: float
    unattributed_fraction: float
    user_fraction: float
    library_fraction: float | None = None
    uncertain_fraction: float | None = None
    impossible_fraction: float | None = None
    hot_lines: tuple[HotLine, ...]
    categories: dict[str, int]
    flamegraph: str | None
    warnings: tuple[str, ...]
    foreign: bool = False
    lowered_fraction: float = 0.0
    merged_lines: tuple[dict[str, Any], ...] = ()
    modules: tuple[dict[str, Any], ...] = ()
    advice: tuple[dict[str, Any], ...] = ()
    host: dict[str, Any] | None = None
    busy_time_ns: int | None = None


def read_profile(capture: Path) -> Profile:
    """Reads the `profile.json` of a capture folder; the capture lies in its job's folder."""
    return read_document(capture / "profile.json", Profile, PROFILE_SCHEMA, left_in=capture.parent)


def find_machine(folder: Path) -> str | None:
    """The machine of a capture, in the form of `Environment.measured_on`.

    The traced program's own result has all of it. Without one, the devices of the capture stand for the machine.

    Returns: None if neither is readable.
    """
    for path in sorted(folder.glob("*/result.json")):
        with contextlib.suppress(InputError):
            return read_run(path, left_in=folder).environment.measured_on
    try:
        manifest = json.loads(read_untrusted(folder, "capture/manifest.json"))
        devices = [str(kind) for kind in manifest["environment"]["devices"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not devices:
        return None
    return describe_devices(devices)


def read_flamegraph(capture: Path, profile: Profile) -> dict[str, Any] | None:
    """The Plotly figure of a capture; None if its folder has none that may be read."""
    if profile.flamegraph is None:
        return None
    path = capture / profile.flamegraph
    try:
        text = read_untrusted(capture.parent, PurePath(capture.name, profile.flamegraph))
    except OSError:
        return None
    try:
        figure = json.loads(text)
        return {"data": list(figure["data"]), "layout": dict(figure.get("layout", {}))}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: not a Plotly figure: {error}.") from None
