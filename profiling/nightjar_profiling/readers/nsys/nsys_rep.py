"""Reader of Nsight Systems reports.

In: a `.nsys-rep` file. Out: a `Raw`, by way of `nsys export`, because the format is not documented. The export is
written to a temporary folder, which is deleted once it is read.
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
from nightjar_profiling.readers.nsys.nsys_tables import NsysTables
from nightjar_profiling.readers.raw import Raw

LINES_SHOWN = 20


def read_raw(path: Path, rank: int = 0) -> Raw:
    """Reads a report."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}.") from None
    if size == 0:
        raise InputError(
            f"{path}: is empty (0 bytes).", "check free disk space and that nsys was not killed, then capture again"
        )
    nsys = find_nsys(os.environ)
    if nsys is None:
        hint = f"install Nsight Systems, or run `nsys export --type sqlite {path.name}` on a machine that has it"
        raise ToolError(f"{path}: `nsys export` is needed to read a .nsys-rep file, but nsys is not installed.", hint)
    with tempfile.TemporaryDirectory(prefix="nightjar-nsys-") as folder:
        exported = Path(folder) / "report.sqlite"
        _export(nsys, path, exported)
        with closing(NsysTables(exported)) as tables:
            tables.path = path  # for messages, and to find the dumps next to it
            return read_export(tables, rank)


def _export(nsys: str, path: Path, exported: Path) -> None:
    options = ["--type=sqlite", "--force-overwrite=true", f"--output={exported}"]
    command = [nsys, "export", *options, str(path.absolute())]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode or not exported.is_file():
        output = "\n".join((done.stderr or done.stdout).splitlines()[-LINES_SHOWN:])
        raise ToolError(
            f"{path}: `{' '.join(command)}` exited with {done.returncode} and wrote no export:\n{output}",
            "use an nsys at least as new as the one that wrote the report",
        )
