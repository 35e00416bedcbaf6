"""The command `nightjar`: `nightjar ci ...` is `nightjar-ci ...`, for every program of Nightjar that is installed.

In: the name of a program, or nothing. Out: that program, in this process, or the list of programs. They are found by
their entry points, so that this package imports none of them.
"""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, entry_points, version
from typing import Final

_PREFIX: Final = "nightjar-"
_USAGE = 2


def find_programs() -> dict[str, EntryPoint]:
    """The installed programs by the name after `nightjar-`."""
    scripts = entry_points(group="console_scripts")
    own = sorted((script for script in scripts if script.name.startswith(_PREFIX)), key=lambda script: script.name)
    return {script.name.removeprefix(_PREFIX): script for script in own}


def render_help(programs: dict[str, EntryPoint]) -> str:
    """The list of programs, with what each is for."""
    lines = ["Usage: nightjar PROGRAM [ARGS]...", "", "Programs:"]
    for name, script in programs.items():
        distribution = script.dist
        summary = ""
        if distribution is not None:
            own = script.name == distribution.name
            summary = distribution.metadata["Summary"] if own else f"comes with {distribution.name}"
        lines.append(f"  {name:<12} {summary}")
    return "\n".join([*lines, "", "Example: nightjar ci try ."])


def main() -> None:
    """Runs a program, and ends with its exit code."""
    programs, words = find_programs(), sys.argv[1:]
    if not words or words[0] in ("--help", "-h"):
        print(render_help(programs))
    elif words[0] == "--version":
        print(f"nightjar {version('nightjar')}")
    elif words[0] in programs:
        sys.argv = [f"{_PREFIX}{words[0]}", *words[1:]]
        programs[words[0]].load()()
    else:
        print(f"error: no program {words[0]!r}: expected one of {', '.join(programs)}.", file=sys.stderr)
        print("Hint: nightjar ci nightly MATRIX", file=sys.stderr)
        sys.exit(_USAGE)
