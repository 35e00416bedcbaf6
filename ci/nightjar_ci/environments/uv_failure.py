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
    """The error for a failure of uv, with the packages that do not fit together first.

    >>> stderr = "Because a==1 depends on jax<2 and you require jax==2, we can conclude that a==1 cannot be used."
    >>> explain_failure("uv:jax==2", ["uv"], 1, stderr).message.partition(chr(10))[0]
    'uv:jax==2: a==1 requires jax<2: `uv` exited with 1:'
    """
    joined = " ".join(line.strip(" │├╰─▶") for line in stderr.splitlines())
    needs = re.findall(r"(?:[Bb]ecause|and) (\S+) depends on ([^,]*?)(?:,| and |$)", joined)
    absent = re.findall(r"there (?:is|are) no versions? of (\S+)", joined)
    own_hint = re.search(r"^\s*hint: (.+)$", stderr, re.MULTILINE)
    python = re.search(r"Python version \(\S+\) does not satisfy Python(\S+) and (\S+) depends on Python", joined)
    reasons = [f"{name} requires {needed}" for name, needed in needs] + [f"there is no {name}" for name in absent]
    hint = None
    if python is not None:
        pythons, name = python.groups()
        hint = f"{name} needs Python{pythons}: run this in an environment with such a Python, or try another version"
    elif absent:
        hint = "is the version right, and is this the package index that has it?"
    elif needs:
        name = re.split("[=<>!~]", needs[0][0])[0]
        hint = f"choose a version of {name} that does not, as in {text},{name}==..."
    elif own_hint is not None:
        hint = own_hint[1]
    elif "python-build-standalone" in stderr:
        hint = "put that Python's folder on PATH, or ask for another: it is not here, and uv cannot download it"
    elif _NETWORK.search(stderr):
        hint = "can this machine reach the package index? UV_DEFAULT_INDEX sets another"
    reason = "; ".join(dict.fromkeys(reasons)) or "the environment cannot be made"
    tail = "\n".join(stderr.strip().splitlines()[-20:])
    return EnvironmentFailedError(f"{text}: {reason}: `{' '.join(command)}` exited with {exit_code}:\n{tail}\n", hint)
