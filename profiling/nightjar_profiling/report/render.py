"""The report page: profile and tables in, one self-contained HTML text out; light and dark, no network."""

from __future__ import annotations

import base64
import json
import shlex
import zlib
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import PurePath
from typing import Any

import jinja2
import numpy as np
import polars as pl
from markupsafe import Markup
from numpy.typing import NDArray

from nightjar_profiling.analyses.advice import Advice
from nightjar_profiling.analyses.gaps import measure_busy
from nightjar_profiling.analyses.roofline import read_peak
from nightjar_profiling.capture_folder.manifest import Manifest, mark_times
from nightjar_profiling.capture_folder.tables import Tables
from nightjar_profiling.report.analyse import Profile
from nightjar_profiling.report.contents import page_document

PAGE = files("nightjar_profiling.report") / "page"
PROFILERS = {"jax": "JAX's profiler", "nsys": "Nsight Systems"}
SCRIPTS = ("data", "format", "table", "charts", "lines", "flame", "timeline", "timeline_view", "main")
SHOWN_HOSTS = 16
ARRAY_TYPES = {"float64": "Float64Array", "int32": "Int32Array", "uint8": "Uint8Array"}


def render_report(
    profile: Profile,
    manifest: Manifest,
    tables: Tables,
    is_user_code: Callable[[str], bool],
    source_of: Callable[[str], str | None],
    advice: Sequence[Advice] = (),
) -> str:
    """The HTML text of the page."""
    script = "\n".join((PAGE / f"{name}.js").read_text("utf-8") for name in SCRIPTS)
    peak = read_peak(manifest.environment)
    document = page_document(tables, is_user_code, source_of, peak, advice, profile.host)
    return load_template("page.html.j2").render(
        head_data(profile, manifest, tables),
        script=Markup(f'"use strict";\n(() => {{\n{script}\n}})();'),
        packed=Markup(pack(document)),
    )


def load_template(name: str) -> jinja2.Template:
    """A template of the folder `page`, with its `style`."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("nightjar_profiling.report", "page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["style"] = Markup((PAGE / "style.css").read_text("utf-8"))
    return environment.get_template(name)


def head_data(profile: Profile, manifest: Manifest, tables: Tables) -> dict[str, Any]:
    """The formatted texts of the page header."""
    fractions = {
        "direct": profile.direct_fraction,
        "inferred": profile.inferred_fraction,
        "none": profile.unattributed_fraction,
    }
    busy = measure_busy(tables.ops)
    longest_ns, span_ns, busy_ns = busy.select(pl.max("span_ns").alias("longest_ns"), pl.sum("span_ns", "busy_ns")).row(
        0
    )
    return {
        "title": title_of(profile.command) or manifest.environment.get("trace", "raw trace"),
        "command": shlex.join(profile.command),
        "mark": mark_times(manifest.backend),
        "device_time": duration(profile.device_time_ns),
        "steps": "" if profile.steps is None else f"steps {profile.steps[0]} to {profile.steps[1]}",
        "has_stacks": profile.unattributed_fraction < 1.0,
        "user_share": percent(profile.user_fraction),
        "library_share": percent(profile.library_fraction),
        "uncertain_share": percent(profile.uncertain_fraction),
        "elapsed": duration(longest_ns or 0),
        "idle_share": percent(1 - busy_ns / max(span_ns, 1)),
        "shares": {name: percent(value) for name, value in fractions.items()},
        "widths": {name: round(100 * value, 3) for name, value in fractions.items()},
        "ops": f"{tables.ops.height:,}",
        "n_instructions": f"{tables.attribution.n_unique(['program_id', 'instruction']):,}",
        "n_programs": f"{tables.programs.height:,}",
        "n_devices": f"{tables.ops.select('rank', 'device').n_unique():,}",
        "n_ranks": f"{tables.ops['rank'].n_unique():,}",
        "warnings": profile.warnings,
        "environment": describe(manifest),
        "flags": manifest.environment.get("flags", {}),
    }


def title_of(command: tuple[str, ...]) -> str:
    """A short name for a command: its first three words, without directories and a leading Python; or `Notebook`."""
    if any(PurePath(word).name == "ipykernel_launcher.py" for word in command):
        return "Notebook"
    words = [PurePath(word).name or word for word in command]
    while words and (words[0].startswith("python") or words[0] == "-m"):
        words = words[1:]
    return " ".join(words[:3])


def percent(fraction: float) -> str:
    """A percentage with one decimal; a value just below 100 % is shown as `>99.9 %`.

    >>> percent(0.1234), percent(1.0), percent(0.99999)
    ('12.3 %', '100 %', '>99.9 %')
    """
    if fraction == 1.0:
        return "100 %"
    if fraction > 0.9995:
        return ">99.9 %"
    return f"{100 * fraction:.1f} %"


def duration(ns: int) -> str:
    """A duration in seconds, milliseconds or microseconds.

    >>> duration(1_234_567), duration(890), duration(2_500_000_000)
    ('1.235 ms', '0.890 µs', '2.500 s')
    """
    for unit, size in (("s", 1e9), ("ms", 1e6)):
        if ns >= size:
            return f"{ns / size:.3f} {unit}"
    return f"{ns / 1e3:.3f} µs"


def describe(manifest: Manifest) -> list[str]:
    """Devices, versions and machine of a capture, one short text each."""
    environment = manifest.environment
    versions = [f"{name} {version}" for name, version in sorted(environment.get("versions", {}).items())]
    devices = environment.get("devices", [])
    kinds = [f"{devices.count(kind)} x {kind}" for kind in sorted(set(devices))]
    source = mark_times(manifest.backend) or PROFILERS.get(manifest.backend, "")
    machine = environment.get("machine", {})
    parts = [*kinds, source, *versions, *(machine[name] for name in ("host", "cpu") if name in machine)]
    if hosts := environment.get("hosts"):
        parts.append(f"hosts in order of rank: {', '.join(hosts[:SHOWN_HOSTS])}")
        if len(hosts) > SHOWN_HOSTS:
            parts[-1] += f" and {len(hosts) - SHOWN_HOSTS} more"
    if "driver" in machine:
        parts.append(f"driver {machine['driver']}")
    if "python" in environment:
        parts.append(f"Python {environment['python']}")
    return parts


def pack(document: dict[str, Any]) -> str:
    """The packed text, which `inflate` in page/data.js reads."""
    columns = _Columns()
    text = json.dumps(document, default=columns.add, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "replace"
    )
    head = len(text).to_bytes(4, "little") + text
    return base64.b64encode(zlib.compress(head + _padding(head) + bytes(columns.data), 6)).decode("ascii")


def unpack(packed: str) -> dict[str, Any]:
    """The document of a packed text, for tests and for programs that read a report.

    >>> unpack(pack({"a": "é", "b": np.array([1, 2], dtype=np.int32)}))
    {'a': 'é', 'b': array([1, 2], dtype=int32)}
    """
    data = zlib.decompress(base64.b64decode(packed))
    end = 4 + int.from_bytes(data[:4], "little")
    start = end + len(_padding(data[:end]))

    def column(value: dict[str, Any]) -> Any:
        if value.keys() != {"$"}:
            return value
        kind, offset, length = value["$"]
        dtype = next(name for name, array in ARRAY_TYPES.items() if array == kind)
        return np.frombuffer(data, dtype=dtype, count=length, offset=start + offset)

    document: dict[str, Any] = json.loads(data[4:end], object_hook=column)
    return document


class _Columns:
    """The columns of a document, in the order in which JSON reaches them."""

    def __init__(self) -> None:
        self.data = bytearray()

    def add(self, value: object) -> dict[str, list[str | int]]:
        """Stores a column, and returns its reference."""
        if not isinstance(value, np.ndarray):
            raise TypeError(f"not JSON serializable: {value!r}")
        column: NDArray[Any] = value
        offset = len(self.data)
        self.data += column.tobytes()
        self.data += _padding(self.data)
        return {"$": [ARRAY_TYPES[column.dtype.name], offset, len(column)]}


def _padding(data: bytes | bytearray) -> bytes:
    return bytes(-len(data) % 8)
