"""The errors of failed runs of uv: the package that conflicts or is missing, and uv's own message."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nightjar_ci.errors import EnvironmentFailedError

# Messages of uv 0.13 if an index does not answer: "Failed to fetch", and the causes below it.
_NETWORK = re.compile(
    r"failed to (fetch|download)|request for url|client error|\bconnect(ion)?\b|\bdns\b|timed out|\btls\b|certificate"
    r"|http status|\bnetwork\b|\boffline\b",
    re.IGNORECASE,
)


def explain_failure(text: str, command: Sequence[str], exit_code: int, stderr: str) -> EnvironmentFailedError:
    """The error for a failure of uv: the conflicting package, and uv's own message."""
    joined = " ".join(line.strip(" │├╰─▶") for line in stderr.splitlines())
    blocker = re.search(r"(?:Because|And because) (\S+?)(?:==\S+)? depends on ([^,]*?)(?:,| and |$)", joined)
    absent = re.search(r"(?:there is no version of|there are no versions of) (\S+)", joined)
    own_hint = re.search(r"^\s*hint: (.+)$", stderr, re.MULTILINE)
    python = re.search(r"Python version \(\S+\) does not satisfy Python(\S+) and (\S+) depends on Python", joined)
    hint = None
    if python is not None:
        needs, name = python.groups()
        hint = f"{name} needs Python{needs}: run this in an environment with such a Python, or try another version"
    elif absent is not None:
        hint = f"{absent[1]} is not in the package index: is the version right?"
    elif blocker is not None:
        name, needs = blocker[1], blocker[2]
        hint = f"{name} requires {needs}: choose a version of it that does not, as in uv:{text},{name}==..."
    elif own_hint is not None:
        hint = own_hint[1]
    elif _NETWORK.search(stderr):
        hint = "can this machine reach the package index? UV_DEFAULT_INDEX sets another"
    tail = "\n".join(stderr.strip().splitlines()[-20:])
    command_line = " ".join(command)
    return EnvironmentFailedError(
        f"uv:{text}: the environment cannot be made: `{command_line}` exited with {exit_code}:\n{tail}\n", hint
    )
