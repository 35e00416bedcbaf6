"""What a test imports, and which rungs it can therefore not tell apart."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

from nightjar_ci.bisect.ladders.rung import Rung
from nightjar_ci.bisect.sensors.imports import (
    IMPORT_TIMES,
    NOT_IMPORTED,
    describe_imports,
    find_imported,
    read_modules,
    weigh_imports,
)


def install(folder: Path, name: str, *files: str) -> Distribution:
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    return PathDistribution(info)


def ladder(*versions: str) -> list[Rung]:
    """Rungs of packages a, b, c, each at the version of its digit."""
    return [
        Rung(kind="packages", name=digits, pins=dict(zip("abc", digits, strict=True)), when=None) for digits in versions
    ]


def test_imports_of_a_process_and_of_its_children_are_read() -> None:
    code = "import subprocess, sys, colorsys; subprocess.run([sys.executable, '-c', 'import this'])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, IMPORT_TIMES: "1"}, capture_output=True, text=True, check=True
    )
    modules = read_modules(done.stderr)
    assert {"colorsys", "subprocess", "this"} <= modules
    assert read_modules("a test that says: import time is long\n") == frozenset()


def test_a_package_counts_as_imported_by_one_of_its_modules_by_what_is_loaded_by_path_or_by_having_no_module(
    tmp_path: Path,
) -> None:
    packages = [
        install(tmp_path, "Used_Name", "used/__init__.py", "used/deep/part.cpython-311-x86_64-linux-gnu.so"),
        install(tmp_path, "unused", "unused/__init__.py", "unused.py"),
        install(tmp_path, "nvidia-x", "nvidia/x/__init__.py", "nvidia/x/lib/libx.so.12"),
        install(tmp_path, "data", "../../share/data.txt"),
    ]
    assert find_imported({"used.deep.part"}, packages) == {"used-name", "nvidia-x", "data"}


def test_steps_that_change_only_what_is_not_imported_weigh_little_and_never_nothing() -> None:
    rungs = ladder("111", "211", "212", "222", "223")
    weights = weigh_imports(rungs, imported={"a", "b"}, installed={"a", "b", "c"})
    assert weights == [1.0, NOT_IMPORTED, 1.0, NOT_IMPORTED]
    assert describe_imports(rungs, weights) == ("2 of 4 steps change only packages that the test does not import: c.")


def test_a_package_that_no_end_has_may_be_imported_between_them() -> None:
    assert weigh_imports(ladder("111", "112"), imported={"a", "b"}, installed={"a", "b"}) == [1.0]
