"""The folder of a bisection: `bisection.json` (the question and the ladders) and `probes.jsonl`.

Each question has one folder, whose name contains a hash of the question, so that the same command resumes an
interrupted bisection. Every probe is one line, written and flushed before the search sees it. A last line that a kill
tore is left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nightjar_ci.bisect.ladders.rung import Ladder
from nightjar_ci.bisect.search.types import Observation, Outcome
from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.formats.adapter import Adapter
from nightjar_ci.formats.documents import StrictModel, read_document, write_json
from nightjar_ci.formats.job import Measure
from nightjar_ci.formats.resources import Resources

Find = Literal["regression", "fix"]


class Strict(StrictModel):
    """A document in which an unknown key is an error."""


class Question(Strict):
    """The complete question: two bisections with the same question share their probes.

    Attributes:
        ladder: how the ladder was made: its kind, packages, repository, ends.
        find: whether the old end is good (a regression) or bad (a fix).
        classifier: how its end is read.
        files: SHA-256 of each file that the command or `prepare` names, and of the local modules that it imports.
        variables: SHA-256 of each environment variable that the test inherits and that may change its result.
        environment: packages that a rung leaves open: the current environment, or requirements.
        install: whether a commit was installed into the current packages; no bisection does so now.
        pass_env, secrets: names of variables that the test and `prepare` inherit, as of a job.
        adapter: how the result of a test is read from its output; None if it writes one itself, or has none.
        replicate, resources, measure: of a test that a matrix gave some.
    """

    ladder: dict[str, str]
    find: Find = "regression"
    command: tuple[str, ...]
    classifier: dict[str, str]
    files: dict[str, str]
    variables: dict[str, str] = Field(default_factory=dict)
    environment: str
    executor: str
    timeout_s: float
    prepare: tuple[str, ...] = ()
    install: bool = False
    pass_env: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    adapter: Adapter | None = None
    replicate: int | None = None
    resources: Resources | None = None
    measure: tuple[Measure, ...] = ()

    @property
    def python(self) -> str | None:
        """The Python of environments that are made of a rung's packages; None for this one."""
        return self.ladder.get("python")

    @property
    def metric(self) -> str | None:
        return self.classifier.get("metric") or self.classifier.get("regex")

    @property
    def inherited(self) -> tuple[str, ...]:
        """The names and patterns of variables that the test inherits besides every job's."""
        return (*self.pass_env, *self.secrets)

    @property
    def id(self) -> str:
        """A folder name: readable, and unique to the question."""
        optional = ("variables", "pass_env", "secrets", "adapter", "replicate", "resources", "measure")
        unused = {name for name in optional if not getattr(self, name)}
        text = json.dumps(self.model_dump(mode="json", exclude=unused), sort_keys=True)
        program = next((Path(part).stem for part in self.command[1:] if not part.startswith("-")), self.command[0])
        name = re.sub(r"[^A-Za-z0-9_]+", "-", f"{program}-{self.ladder.get('what', '')}").strip("-")[:48].strip("-")
        return f"{name or 'bisection'}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class Probe(Strict):
    """One test of one rung: a line of `probes.jsonl`.

    Attributes:
        stage: which ladder: 0 for the first, 1 for the branch of a culprit that is a merge, and so on.
        outcome: in a search for a fix, good and bad are swapped.
        against, beside: of a pair, the rung that was measured right before or after, and its value.
        why: why it cannot tell, or the reason for bad.
        state, exit_code, signal: how the process ended.
        builds: rungs that were made ready for it, in a pair up to two; None in records that do not count them.
        build_s: time that this took; 0 if they were there already.
        test_s: wall time of the rest: the test, in a pair both, and their start.
        folder: of its logs, relative to the bisection's folder.
    """

    stage: int
    rung: int
    name: str
    outcome: Outcome | None
    value: float | None
    against: int | None = None
    beside: float | None = None
    why: str | None = None
    state: str
    exit_code: int | None = None
    signal: str | None = None
    started_at: str
    builds: Annotated[int, Field(ge=0)] | None = None
    build_s: Annotated[float, Field(ge=0)]
    test_s: Annotated[float, Field(ge=0)]
    folder: str

    @property
    def built(self) -> int:
        if self.builds is None:
            return int(self.build_s > 0)
        return self.builds

    @property
    def observation(self) -> Observation:
        return Observation(
            rung=self.rung, outcome=self.outcome, value=self.value, against=self.against, beside=self.beside
        )


class Stage(Strict):
    """One ladder of a bisection."""

    ladder: Ladder
    inside: str | None = None

    def is_branch_of(self, above: Stage) -> bool:
        return self.ladder.package is None and above.ladder.rungs[0].kind == self.ladder.rungs[0].kind == "commit"


class Bisection(BaseModel):
    """`bisection.json`."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")  # older files have an id

    question: Question
    created_at: str
    stages: tuple[Stage, ...]


def read_bisection(folder: Path) -> Bisection | None:
    path = folder / "bisection.json"
    if path.exists():
        return read_document(path, Bisection)
    return None


def write_bisection(folder: Path, bisection: Bisection) -> None:
    write_json(folder / "bisection.json", bisection)


def read_probes(folder: Path) -> list[Probe]:
    """The probes in the order in which they ended; a last line that was torn by a kill is left out."""
    path = folder / "probes.jsonl"
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except FileNotFoundError:
        return []
    probes = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            probes.append(Probe.model_validate_json(line))
        except ValidationError as error:
            if any(lines[number:]):
                raise InputError(f"{path}: line {number} is broken: {error.errors()[0]['msg']}.") from None
    return probes


def append_probe(folder: Path, probe: Probe) -> None:
    """Adds a line to `probes.jsonl`, on the disk when this returns."""
    path = folder / "probes.jsonl"
    try:
        with path.open("r+b" if path.exists() else "w+b") as file:
            contents = file.read()
            file.seek(contents.rfind(b"\n") + 1)  # over a line that a kill tore
            file.truncate()
            file.write(probe.model_dump_json().encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise NightjarError(f"{path}: cannot be written: {error}.", "is the disk full?") from None


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
