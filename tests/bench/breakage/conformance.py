"""The conformance tests, file by file: which lines of the libraries each executes, and whether it notices a fault.

A file that does not execute the changed line runs the installed program, and cannot fail by it: it is not run. In: the
functions to trace, or variables with a planted library. Out: by file, then function, the lines; or success.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

from nightjar_models import conformance
from tests.bench.breakage.draw import Fault
from tests.bench.breakage.plant import add_to_path
from tests.bench.table import NotMeasuredError

TRACER = Path(__file__).with_name("trace_lines.py")
TIMEOUT_S = 1800
Lines = dict[str, dict[str, list[int]]]


def list_files() -> list[str]:
    return sorted(path.stem for path in Path(conformance.__file__).parent.glob("test_*.py"))


def is_green(file: str, environ: Mapping[str, str]) -> bool:
    """Whether the tests of a file pass, in one new process; one that hangs does not."""
    command = [sys.executable, "-m", "nightjar_models.conformance", "-q", "-x", "-W", "default", "-n", "0", "-k", file]
    try:
        return subprocess.run(command, env=environ, capture_output=True, timeout=TIMEOUT_S, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def record_lines(functions: Collection[str], folder: Path) -> Lines:
    """The lines of functions, `module:qualified name`, that each file executes."""
    on_path = folder / "on-path"
    on_path.mkdir(parents=True)
    shutil.copyfile(TRACER, on_path / "sitecustomize.py")
    (on_path / "traced.txt").write_text("\n".join(functions), encoding="utf-8")
    lines: Lines = {}
    for file in list_files():
        seen = folder / "lines" / file
        seen.mkdir(parents=True)
        variables = {"BREAKAGE_TRACED": str(on_path / "traced.txt"), "BREAKAGE_LINES": str(seen)}
        if not is_green(file, add_to_path(on_path, {**os.environ, **variables})):
            raise NotMeasuredError(f"{file} does not pass with its lines traced")
        lines[file] = read_lines(seen)
        print(f"traced: {file}", flush=True)
    if not any(lines.values()):
        raise NotMeasuredError(f"the tests execute none of {len(functions)} functions: their lines are not traced")
    return lines


def read_lines(folder: Path) -> dict[str, list[int]]:
    lines: dict[str, set[int]] = {}
    for path in folder.iterdir():
        for line in path.read_text(encoding="utf-8").splitlines():
            function, _, number = line.rpartition(":")
            lines.setdefault(function, set()).add(int(number))
    return {function: sorted(numbers) for function, numbers in lines.items()}


def find_executing(fault: Fault, lines: Lines) -> list[str]:
    """The files that execute a changed expression, the one that executes most lines of its function first."""
    files = [file for file in lines if executes(lines[file], fault)]
    return sorted(files, key=lambda file: len(lines[file][fault.place.id]), reverse=True)


def executes(lines: dict[str, list[int]], fault: Fault) -> bool:
    """Whether one of the lines of the expression was executed; of a default, any line of the function."""
    executed = lines.get(fault.place.id, [])
    if not fault.statement:
        return bool(executed)
    last = fault.mutant.line + fault.mutant.before.count("\n")
    return any(fault.statement <= number <= last for number in executed)
