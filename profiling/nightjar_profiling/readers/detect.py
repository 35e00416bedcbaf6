"""Kinds of raw traces and their readers.

In: the path of a raw trace. Out: its `Kind`, by file name and first bytes, and the `Raw` that the kind's reader makes.
A reader is imported only for a file of its kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal, cast

from nightjar_profiling.errors import InputError
from nightjar_profiling.readers.raw import Raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of raw trace.

    Attributes:
        name: name in messages.
        backend: profiler that writes it.
        suffix: end of the file name; raw traces in a capture are called `rank0000<suffix>`.
        reader: `module:function` that takes a path and the rank of the file, and returns a `Raw`.
    """

    name: str
    backend: Literal["jax", "nsys", "estimate"]
    suffix: str
    reader: str

    def read(self, path: Path, rank: int = 0) -> Raw:
        """Reads a file of this kind.

        Raises:
            InputError: missing, truncated, or not what its name says.
        """
        module, _, function = self.reader.partition(":")
        return cast(Callable[[Path, int], Raw], getattr(import_module(module), function))(path, rank)


READERS = "nightjar_profiling.readers"
XPLANE = Kind(name="XPlane", backend="jax", suffix=".xplane.pb", reader=f"{READERS}.xplane.xplane:read_raw")
ARCHIVE = Kind(name="nsys-jax archive", backend="nsys", suffix=".zip", reader=f"{READERS}.nsys_jax.nsys_jax:read_raw")
SQLITE = Kind(name="nsys SQLite", backend="nsys", suffix=".sqlite", reader=f"{READERS}.nsys.nsys_export:read_sqlite")
PARQUET = Kind(
    name="nsys Parquet", backend="nsys", suffix="_pqtdir", reader=f"{READERS}.nsys.nsys_export:read_parquet_folder"
)
REPORT = Kind(name="nsys report", backend="nsys", suffix=".nsys-rep", reader=f"{READERS}.nsys.nsys_rep:read_raw")
ESTIMATE = Kind(name="estimate", backend="estimate", suffix=".estimate.zip", reader=f"{READERS}.estimate:read_raw")
KINDS = (ESTIMATE, XPLANE, ARCHIVE, SQLITE, PARQUET, REPORT)
MAGIC = {b"SQLite format 3\0": SQLITE, b"PK\3\4": ARCHIVE}


def find_kind(path: Path) -> Kind:
    """Finds the kind of a raw trace by its name, otherwise by its content; any other file counts as an XPlane.

    Raises:
        InputError: no such file, or a folder that is not a raw trace.
    """
    kind = _find_kind(path)
    if kind is not None:
        return kind
    expected = ", ".join(f"*{entry.suffix}" for entry in KINDS)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder.", f"expected a capture folder or a raw trace: {expected}")
    what = "neither a file nor a folder"
    if path.is_dir():
        what = "the folder is neither a capture nor a raw trace"
    raise InputError(f"{path}: {what}.", f"expected one of {expected}")


def is_raw(path: Path) -> bool:
    """Whether a path is a raw trace and not a capture folder.

    Raises:
        InputError: the folder is a log folder with separate raw traces.
    """
    return not path.is_dir() or (_find_kind(path) is not None and not (path / "manifest.json").is_file())


def _find_kind(path: Path) -> Kind | None:
    for kind in KINDS:
        if path.name.endswith(kind.suffix):
            return kind
    if path.is_dir():
        if (path / "nvtx_gpu_proj_trace").is_dir():
            return ARCHIVE
        if logs := sorted(path.glob("plugins/profile/*/*.xplane.pb")):
            hint = f"name one of them, such as {logs[-1]}"
            raise InputError(f"{path}: this is a log folder of JAX's profiler ({len(logs)} traces).", hint)
        return PARQUET if any(path.glob("*.parquet")) else None
    if not path.is_file():
        return None
    with path.open("rb") as file:
        start = file.read(16)
    return next((kind for magic, kind in MAGIC.items() if start.startswith(magic)), XPLANE)


def find_raw(folder: Path) -> list[Path]:
    """Finds the raw traces of a capture folder, in order of rank.

    Raises:
        InputError: the folder has no raw trace.
    """
    traces = _raw_traces(folder)
    if not traces:
        expected = ", ".join(f"raw/*{kind.suffix}" for kind in KINDS)
        raise InputError(f"{folder}: no raw trace, expected {expected}.", "check that the folder is a capture")
    return traces


def has_raw(folder: Path) -> bool:
    """Whether a capture folder has a raw trace; a merged capture has none."""
    return bool(_raw_traces(folder))


def _raw_traces(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("raw/*") if path.name.endswith(tuple(kind.suffix for kind in KINDS)))
