"""Faults in a copy of the installed libraries, which the jobs of a night find first on their path.

In: a fault. Out: a folder with the package of the fault, hard links of the installed files but for the changed one. It
comes first on PYTHONPATH; the installation itself is never touched.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench.breakage.draw import Fault


@contextmanager
def planted(fault: Fault, folder: Path) -> Iterator[Path]:
    with replaced(fault.place.root, fault.place.file, fault.render(), folder) as path:
        yield path


@contextmanager
def replaced(root: Path, file: Path, text: str, folder: Path) -> Iterator[Path]:
    package = Path(*file.parts[: 2 if file.parts[0] == "orbax" else 1])  # orbax is a namespace of several packages
    target = folder / "planted"
    (target / package).parent.mkdir(parents=True)
    shutil.copytree(root / package, target / package, copy_function=_link, ignore=_without_bytecode(file))
    (target / file).unlink()
    (target / file).write_text(text, encoding="utf-8")
    try:
        yield target
    finally:
        shutil.rmtree(target)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _without_bytecode(file: Path) -> Any:
    """Leaves out the compiled form of the changed file, which could pass for the new one within a second."""
    return lambda folder, names: [name for name in names if name.startswith(f"{file.stem}.") and name.endswith(".pyc")]


def add_to_path(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(folder), environ.get("PYTHONPATH", ""))))
    return {**environ, "PYTHONPATH": path}
