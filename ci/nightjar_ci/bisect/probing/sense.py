"""The sensors of one ladder: a run of the test on a rung for its programs, in addition to the timed runs.

In: the test. Out: the programs that it compiles on a rung. Each rung is run once, and its results are kept in
`sensed/`, so that an interrupted bisection does not run it again. Timed runs never dump: writing takes time.
"""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from nightjar_ci.bisect.ladders.rung import file_name
from nightjar_ci.bisect.probing.rung_run import escape, run_test
from nightjar_ci.bisect.probing.rung_setup import RungSetup
from nightjar_ci.bisect.sensors.program_changes import ProgramChanges, find_program_changes
from nightjar_ci.bisect.sensors.programs import Program, compare_programs, digest_programs, dump_flags, read_programs
from nightjar_ci.formats.documents import read_document, write_json
from nightjar_ci.untrusted.inheritance import inherit


class Sensed(BaseModel):
    """The programs that one run of a rung compiled.

    Attributes:
        programs: by name; empty if it used no XLA, or could not be run.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")  # of before: which packages it imported

    programs: dict[str, Program] = {}
    problem: str | None = None
    built: bool = False
    took_s: float = 0.0


@dataclass(slots=True)
class Sensors:
    """Reads the programs of rungs."""

    setup: RungSetup
    _seen: dict[int, Sensed] = field(default_factory=dict)

    def sense(self, index: int) -> Sensed:
        """The programs of a rung; it is run if it was not yet."""
        if index not in self._seen:
            name = f"s{self.setup.stage}-{file_name(index, self.setup.ladder.rungs[index].name)}"
            path = self.setup.folder / "sensed" / f"{name}.json"
            if not path.exists():
                built, start = not self.setup.is_ready(index), time.monotonic()
                sensed = self._run(index, path.with_suffix(""))
                work = {"built": built, "took_s": round(time.monotonic() - start, 3)}
                write_json(path, sensed.model_copy(update=work))
            self._seen[index] = read_document(path, Sensed)
        return self._seen[index]

    def work(self) -> tuple[int, float]:
        """Rungs that were made ready for sensing, and seconds that all sensing took, earlier runs included."""
        paths = self.setup.folder.glob(f"sensed/s{self.setup.stage}-*.json")
        every = [read_document(path, Sensed) for path in paths]
        return sum(sensed.built for sensed in every), sum(sensed.took_s for sensed in every)

    def digest(self, index: int) -> str | None:
        """A digest of the programs of a rung; None if it has none."""
        programs = self.sense(index).programs
        if not programs:
            return None
        return digest_programs(programs)

    def changes(self, *, everywhere: bool) -> ProgramChanges | None:
        return find_program_changes(len(self.setup.ladder.rungs), self.digest, everywhere=everywhere)

    def compare(self, before: int, after: int) -> list[str]:
        """The programs of two rungs compared, in words; empty if one of them has none."""
        return compare_programs(self.sense(before).programs, self.sense(after).programs)

    def _run(self, index: int, folder: Path) -> Sensed:
        inherited = inherit(os.environ, self.setup.question.inherited).get("XLA_FLAGS", "")
        flags = f"{escape(inherited)} {dump_flags('{out}/hlo')}".strip()
        env = {"XLA_FLAGS": flags, "JAX_ENABLE_COMPILATION_CACHE": "false"}  # cached programs are not compiled
        self.setup.on_line(f"reading the programs of {self.setup.ladder.rungs[index].name}")
        outcome = run_test(self.setup, index, folder, env)
        if not outcome.completed:
            return Sensed(problem=outcome.message or f"{outcome.state}, exit code {outcome.exit_code}")
        programs = read_programs(folder / "hlo")
        shutil.rmtree(folder / "hlo", ignore_errors=True)  # large, and read
        return Sensed(programs=programs)
