"""The command of a canary: `python -m nightjar_models.canaries.run NAME` ends with 1 while a defect is there.

In: the name of one program or of a table of entries. Out: one line per defect on stdout, and the exit code: 0 without a
defect, 1 with one, 2 for an unknown name. Where `XML_OUTPUT_FILE` names a file, as in a test job, it gets a JUnit test
per defect; a program that crashes leaves none, an entry that crashes is an error of its test. A defect that a later
release has mended is skipped in the releases before it, so that one matrix serves all.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal
from xml.etree import ElementTree

from nightjar_models import canaries

PARTS = ("entry", "run")  # modules of the room that are not canaries


@dataclass(frozen=True, slots=True)
class Result:
    """The report of one look: the name of the defect, a line for people, and how a test of it ends."""

    name: str
    line: str
    ends: Literal["passed", "failure", "error", "skipped"]


def main(name: str) -> int:
    """Looks for the defects of a module and reports them."""
    names = sorted(module.name for module in pkgutil.iter_modules(canaries.__path__) if module.name not in PARTS)
    if name not in names:
        print(f"error: unknown canary {name!r}: expected one of {', '.join(names)}.", file=sys.stderr)
        return 2
    module = importlib.import_module(f"{canaries.__name__}.{name}")
    results = list(look_at_table(module) if hasattr(module, "CANARIES") else look_at_program(name, module))
    if path := os.environ.get("XML_OUTPUT_FILE"):
        Path(path).write_text(write_junit(results))
    for result in results:
        print(result.line)
    return int(any(result.ends in ("failure", "error") for result in results))


def look_at_program(name: str, module: ModuleType) -> Iterator[Result]:
    """Runs a canary that is a whole program."""
    seen = module.look()
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in ("jax", "jaxlib", "flax"))
    if seen:
        yield Result(name, f"still broken: {name}: {seen} ({versions})", "failure")
    else:
        yield Result(name, f"fixed: {name} ({versions})", "passed")


def look_at_table(module: ModuleType) -> Iterator[Result]:
    """Computes each entry of a table; a crash of one does not hide the others."""
    from nightjar_models.canaries.entry import look

    for canary in module.CANARIES:
        try:
            finding = look(canary)
        except Exception as error:
            yield Result(canary.name, f"crashed: {canary.name}: {type(error).__name__}: {error}", "error")
            continue
        release = f"{canary.package} {finding.release}, {canary.issue}"
        if finding.wrong is None:
            yield Result(canary.name, f"fixed: {canary.name} ({release})", "passed")
        elif finding.is_mended_later:
            line = f"still broken: {canary.name}: {finding.wrong} ({release}; right from {canary.right} on)"
            yield Result(canary.name, line, "skipped")
        else:
            yield Result(canary.name, f"{finding.verdict}: {canary.name}: {finding.wrong} ({release})", "failure")


def write_junit(results: list[Result]) -> str:
    """A JUnit document with a test per defect.

    >>> write_junit([Result("axis_name", "fixed", "passed")])
    '<testsuite><testcase classname="canaries" name="axis_name" /></testsuite>'
    """
    suite = ElementTree.Element("testsuite")
    for result in results:
        case = ElementTree.SubElement(suite, "testcase", classname="canaries", name=result.name)
        if result.ends != "passed":
            ElementTree.SubElement(case, result.ends, message=result.line)
    return ElementTree.tostring(suite, encoding="unicode")


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
