"""The command of a canary: `python -m nightjar_models.canaries.run NAME` ends with 1 while the defect is there.

In: a name. Out: one line on stdout, and the exit code: 0 without the defect, 1 with it, 2 for an unknown name. Where
`XML_OUTPUT_FILE` names a file, as in a test job, it gets one JUnit test; a canary that crashes leaves none.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import pkgutil
import sys
from pathlib import Path
from xml.etree import ElementTree

from nightjar_models import canaries


def main(name: str) -> int:
    """Looks for a defect and says what was seen."""
    names = sorted(module.name for module in pkgutil.iter_modules(canaries.__path__) if module.name != "run")
    if name not in names:
        print(f"error: unknown canary {name!r}: expected one of {', '.join(names)}.", file=sys.stderr)
        return 2
    seen = importlib.import_module(f"{canaries.__name__}.{name}").look()
    if path := os.environ.get("XML_OUTPUT_FILE"):
        Path(path).write_text(write_junit(name, seen))
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in ("jax", "jaxlib", "flax"))
    print(f"still broken: {name}: {seen} ({versions})" if seen else f"fixed: {name} ({versions})")
    return 1 if seen else 0


def write_junit(name: str, seen: str | None) -> str:
    """A JUnit document with one test, which fails where something was seen.

    >>> write_junit("axis_name", None)
    '<testsuite><testcase classname="canaries" name="axis_name" /></testsuite>'
    """
    suite = ElementTree.Element("testsuite")
    case = ElementTree.SubElement(suite, "testcase", classname="canaries", name=name)
    if seen:
        ElementTree.SubElement(case, "failure", message=seen)
    return ElementTree.tostring(suite, encoding="unicode")


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
