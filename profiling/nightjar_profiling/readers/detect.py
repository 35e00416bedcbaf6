"""Detection of the kind of a raw trace, and the choice of its reader.

In: the path of a raw trace. Out: its `Kind`, found by name and first bytes, and the result of the reader for that kind.
A reader is imported only when a file of its kind is read.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Literal, NoReturn, cast

from nightjar_profiling.errors import InputError
from nightjar_profiling.readers.raw import Raw
from nightjar_profiling.terminal import say


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of raw trace.

    Attributes:
        name: as messages call it.
        backend: which profiler writes it.
        suffix: how the name of such a file ends; raw traces in a capture are called `rank0000<suffix>`.
        reader: `module:function` that takes a path and the rank of the file, and returns a `Raw`.
    """

    name: str
    backend: Literal["jax", "nsys", "estimate"]
    suffix: str
    reader: str

    def read(self, path: Path, rank: int = 0) -> Raw:
        """Reads a file of this kind."""
        module, _, function = self.reader.partition(":")
        return cast(Callable[[Path, int], Raw], getattr(import_module(module), function))(path, rank)


READERS = "nightjar_profiling.readers"
XPLANE = Kind(name="XPlane", backend="jax", suffix=".xplane.pb", reader=f"{READERS}.xplane.xplane:read_raw")
ARCHIVE = Kind(name="nsys-jax archive", backend="nsys", suffix=".zip", reader=f"{READERS}.nsys_jax.nsys_jax:read_raw")
SQLITE = Kind(name="nsys SQLite", backend="nsys", suffix=".sqlite", reader=f"{READERS}.nsys.nsys_export:read_sqlite")
REPORT = Kind(name="nsys report", backend="nsys", suffix=".nsys-rep", reader=f"{READERS}.nsys.nsys_rep:read_raw")
ESTIMATE = Kind(name="estimate", backend="estimate", suffix=".estimate.zip", reader=f"{READERS}.estimate:read_raw")
KINDS = (ESTIMATE, XPLANE, ARCHIVE, SQLITE, REPORT)
JSON = "JSON, expected a trace: the trace events of a profiler hold no HLO."
JSON_HINT = (
    "give the *.xplane.pb that JAX's profiler wrote beside it; Holistic Trace Analysis reads traces of PyTorch, "
    "TraceLens those of PyTorch and ROCm"
)
SAME_RUN_S = 30  # the hosts of a job begin a trace at the same step, and seldom further apart
MAGIC = {b"SQLite format 3\0": SQLITE, b"PK\3\4": ARCHIVE}
PACKED = ((b"\x28\xb5\x2f\xfd", "zstd"), (b"\xfd7zXZ", "xz"), (b"BZh", "bzip2"))
SNIFFED_BYTES = 512


def find_kind(path: Path) -> Kind:
    """The kind of a raw trace, by its name, else by its contents; any other file is taken for an XPlane."""
    kind = _find_kind(path)
    if kind is not None:
        return kind
    expected = ", ".join(f"*{kind.suffix}" for kind in KINDS)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder.", f"expected a capture folder or a raw trace: {expected}")
    if path.is_dir():
        what = "a folder that is neither a capture nor a raw trace"
    else:
        what = "neither a file nor a folder"
    raise InputError(f"{path}: {what}.", f"expected one of {expected}")


def find_runs(path: Path) -> list[list[Path]]:
    """The runs in a log folder of JAX's profiler, or in the folder of one run, newest last: a trace for each host.

    Each host names the folder of its run by its own clock, in seconds, so that one run may lie in several folders.
    """
    traces = [*path.glob("*.xplane.pb"), *path.glob("plugins/profile/*/*.xplane.pb")]
    traces += path.glob("*/plugins/profile/*/*.xplane.pb")
    runs: list[list[Path]] = []
    last_s = 0.0
    for folder in sorted({trace.parent for trace in traces}, key=lambda folder: (date_run(folder), folder)):
        hosts, begun_s = [trace for trace in traces if trace.parent == folder], date_run(folder)
        if runs and begun_s - last_s <= SAME_RUN_S and not {t.name for t in hosts} & {t.name for t in runs[-1]}:
            runs[-1] += hosts
        else:
            runs.append(hosts)
        last_s = begun_s
    return [sorted(run, key=lambda trace: ([int(n) for n in re.findall(r"\d+", trace.name)], trace)) for run in runs]


def date_run(folder: Path) -> float:
    """When a run began, in seconds: from its folder's name, else from its files."""
    with suppress(ValueError):
        return datetime.strptime(folder.name, "%Y_%m_%d_%H_%M_%S").replace(tzinfo=UTC).timestamp()
    return max(trace.stat().st_mtime for trace in folder.glob("*.xplane.pb"))


def name_host(trace: Path) -> str:
    """The host that wrote a trace, as far as the name of the file tells."""
    return trace.name.removesuffix(XPLANE.suffix)


def find_traces(path: Path) -> list[Path]:
    """The raw traces that a path names: itself, or in a log folder of JAX's profiler the newest run's, by host."""
    runs = find_runs(path) if path.is_dir() else []
    if not runs:
        return [path]
    run = runs[-1]
    folders = list(dict.fromkeys(trace.parent for trace in run))
    if len(runs) > 1:
        earlier = f"the one before: nightjar-profiling report {runs[-2][0].parent}"
        say(f"{folders[0]}: the newest of {len(runs)} runs; {earlier}")
    if len(folders) > 1:
        names = ", ".join(folder.name for folder in folders)
        say(f"one run in {len(folders)} folders, begun within {SAME_RUN_S} s by different hosts: {names}")
    if len(run) > 1:
        shown = [f"{rank} {name_host(trace)}" for rank, trace in enumerate(run)]
        say(f"{len(run)} hosts; rank and host: {', '.join(shown)}")
    return run


def is_raw(path: Path) -> bool:
    """Whether a path is taken for a raw trace, and not for a capture folder."""
    return not path.is_dir() or (_find_kind(path) is not None and not (path / "manifest.json").is_file())


def _find_kind(path: Path) -> Kind | None:
    for kind in KINDS:
        if path.name.endswith(kind.suffix):
            return kind
    if path.is_dir():
        if (path / "nvtx_gpu_proj_trace").is_dir():
            return ARCHIVE
        if find_runs(path):
            return XPLANE
        return None
    if not path.is_file():
        return None
    with path.open("rb") as file:
        start = file.read(SNIFFED_BYTES)
    for magic, kind in MAGIC.items():
        if start.startswith(magic):
            return kind
    if start.startswith(b"\x1f\x8b"):
        _refuse_gzipped(path)
    return _find_text(path, start)


def _refuse_gzipped(path: Path) -> NoReturn:
    try:
        with gzip.open(path) as file:
            start = file.read(SNIFFED_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: a damaged gzip file: {error}.", "copy the file again") from None
    if start.lstrip()[:1] in (b"{", b"["):
        raise InputError(f"{path}: {JSON}", JSON_HINT)
    raise InputError(
        f"{path}: a gzip file that holds no JSON, such as a memory profile of JAX (pprof) or a packed trace.",
        "unpack it (gzip -d) and give what is in it, if that is a trace",
    )


def _find_text(path: Path, start: bytes) -> Kind:
    """The kind of a file without a signature: an XPlane; refuses files that cannot be one."""
    for magic, tool in PACKED:
        if start.startswith(magic):
            raise InputError(f"{path}: a file compressed by {tool}, expected a trace.", f"unpack it: {tool} -d FILE")
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] in (b"{", b"["):
        raise InputError(f"{path}: {JSON}", JSON_HINT)
    if len(text) > 1 and not text.translate(None, bytes(range(32, 127)) + b"\t\r\n"):
        raise InputError(f"{path}: a text file, expected a trace.", "name the capture folder, or the profiler's trace")
    return XPLANE


def find_raw(folder: Path) -> list[Path]:
    """The raw traces of a capture folder, in order of rank."""
    traces = _raw_traces(folder)
    if not traces:
        expected = ", ".join(f"raw/*{kind.suffix}" for kind in KINDS)
        raise InputError(f"{folder}: no raw trace: expected {expected}.", "is the folder a capture?")
    return traces


def has_raw(folder: Path) -> bool:
    """Whether a capture folder holds a raw trace; one of merged ranks does not."""
    return bool(_raw_traces(folder))


def _raw_traces(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("raw/*") if path.name.endswith(tuple(kind.suffix for kind in KINDS)))
