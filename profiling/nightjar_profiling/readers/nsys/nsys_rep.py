"""What does a report of Nsight Systems hold, as the profiler itself wrote it?

In: a `.nsys-rep` file. Out: a `Raw`, by way of `nsys export`, as the format is not documented. The export lies in a
temporary folder and goes as soon as it is read.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path

from nightjar_profiling.errors import InputError, ToolError
from nightjar_profiling.readers.nsys.nsight import find_nsys
from nightjar_profiling.readers.nsys.nsys_export import read_export
from nightjar_profiling.readers.nsys.nsys_tables import SqliteTables
from nightjar_profiling.readers.raw import Raw

LINES_SHOWN = 20


def read_raw(path: Path, rank: int = 0) -> Raw:
    """Reads a report.

    Raises:
        InputError: missing or empty.
        ToolError: there is no nsys here, or it could not export the report.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
    if size == 0:
        raise InputError(f"{path}: is empty (0 bytes).", "was nsys killed, or the disk full?")
    nsys = find_nsys(os.environ)
    if nsys is None:
        hint = f"install Nsight Systems, or export where it is: `nsys export --type sqlite {path.name}`"
        raise ToolError(f"{path}: a .nsys-rep is read by `nsys export`, and there is no nsys here.", hint)
    with tempfile.TemporaryDirectory(prefix="nightjar-nsys-") as folder:
        exported = Path(folder) / "report.sqlite"
        _export(nsys, path, exported)
        with closing(SqliteTables(exported)) as tables:
            tables.path = path  # as messages name it, and the dumps beside it are found
            return read_export(tables, rank)


def _export(nsys: str, path: Path, exported: Path) -> None:
    told = subprocess.run([nsys, "export", "--help"], capture_output=True, text=True, errors="replace", check=False)
    blobs = ["--include-blobs=true"] if "--include-blobs" in told.stdout else []  # payloads; not before 2025
    options = ["--type=sqlite", "--force-overwrite=true", *blobs, f"--output={exported}"]
    command = [nsys, "export", *options, str(path.absolute())]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode or not exported.is_file():
        said = "\n".join((done.stderr or done.stdout).splitlines()[-LINES_SHOWN:])
        raise ToolError(
            f"{path}: `{' '.join(command)}` ended with {done.returncode} and left no export:\n{said}",
            "an nsys older than the one that wrote the report cannot read it",
        )
