"""What did a profile job find?

Reads `nightjar.profile/1` and the flame graph beside it (docs/reference/capture-folder.md).
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import read_document
from nightjar_ci.formats.run_record import describe_devices, read_run

PROFILE_SCHEMA = "nightjar.profile/1"


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HotLine(_Strict):
    """A Python line with the device time of the instructions that it made."""

    file: str
    line: int
    function: str
    source: str | None
    self_ns: int
    fraction: float


class Profile(_Strict):
    """The summary of a capture: `nightjar.profile/1`."""

    schema_: Annotated[Literal["nightjar.profile/1"], Field(alias="schema")]
    backend: str
    command: tuple[str, ...]
    steps: tuple[int, int] | None
    device_time_ns: int
    direct_fraction: float
    inferred_fraction: float
    unattributed_fraction: float
    user_fraction: float
    library_fraction: float | None = None  # captures of older versions do not say it
    hot_lines: tuple[HotLine, ...]
    categories: dict[str, int]
    flamegraph: str | None
    warnings: tuple[str, ...]


def read_profile(capture: Path) -> Profile:
    """Reads the `profile.json` of a capture folder.

    Raises:
        InputError: it is missing, truncated, of a foreign or newer schema, or has a wrong key or type.
    """
    return read_document(capture / "profile.json", Profile, PROFILE_SCHEMA)


def find_machine(folder: Path) -> str | None:
    """What a capture was measured on, as `Environment.measured_on` says it.

    The result that the traced program left in a folder of its job says it whole. Else the devices of the capture do.

    Args:
        folder: the folder of the profile job.

    Returns: None where neither says anything.
    """
    for path in sorted(folder.glob("*/result.json")):
        with contextlib.suppress(InputError):
            return read_run(path).environment.measured_on
    try:
        manifest = json.loads((folder / "capture" / "manifest.json").read_text(encoding="utf-8"))
        devices = [str(kind) for kind in manifest["environment"]["devices"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return describe_devices(devices) if devices else None


def read_flamegraph(capture: Path, profile: Profile) -> dict[str, Any] | None:
    """The Plotly figure of a capture, or None where it has none or it lies outside of the capture.

    Raises:
        InputError: the file is not a Plotly figure.
    """
    if profile.flamegraph is None:
        return None
    path = (capture / profile.flamegraph).resolve()
    if not path.is_relative_to(capture.resolve()) or not path.is_file():
        return None
    try:
        figure = json.loads(path.read_text(encoding="utf-8"))
        return {"data": list(figure["data"]), "layout": dict(figure.get("layout", {}))}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a Plotly figure: {error}.") from None
