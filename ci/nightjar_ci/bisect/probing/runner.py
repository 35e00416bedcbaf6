"""The worker of one ladder: it runs the probes that the search asks for on an executor.

In: a ladder, a search that may already hold earlier probes, a classifier, and the setup that makes rungs ready. Out:
a conclusion. Each probe is recorded before the search sees it. With more than one worker, probes run side by side:
the search is told which rungs are running and is asked for others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Self

from nightjar_ci.bisect.ladders.rung import Ladder, file_name
from nightjar_ci.bisect.probing.classify import Classification, Classifier, Metric, swap_good_and_bad
from nightjar_ci.bisect.probing.rung_run import RungTest, escape
from nightjar_ci.bisect.probing.rung_setup import OnLine, RungSetup
from nightjar_ci.bisect.probing.sense import Sensors
from nightjar_ci.bisect.search.search import Search
from nightjar_ci.bisect.search.types import Conclusion
from nightjar_ci.bisect.sensors.program_changes import ProgramChanges, weigh_culprits
from nightjar_ci.bisect.state import Find, Probe, append_probe
from nightjar_ci.environments.uv import FOLLOWS_JAX
from nightjar_ci.executors.process import KEEP_LINES, end_running
from nightjar_ci.formats.night_folder import now, read_result
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.web.http import hide_passwords

GUESSED_BUILD_S = {"packages": 30.0, "image": 120.0, "commit": 30.0, "listed": 30.0}  # until the first is measured
GUESSED_TEST_S = 10.0


@dataclass(frozen=True, slots=True)
class Work:
    """The cost of a probe.

    Attributes:
        builds: rungs that it made ready.
        test_s: of the rest: the test, once or in a pair, and its start.
    """

    builds: int
    build_s: float
    test_s: float

    @classmethod
    def split(cls, took_s: float, tested_s: float, builds: int) -> Self:
        if not builds:
            return cls(0, 0.0, took_s)
        return cls(builds, max(0.0, took_s - tested_s), tested_s)


@dataclass(slots=True)
class Worker:
    """Runs the probes of one ladder.

    Attributes:
        find: whether the old end is good (find a regression) or bad (find a fix).
        max_minutes: time after which no probe is started; None for any.
        earlier_s: time that the other ladders of the bisection took.
        sensors: read the programs of rungs, to guide the search; None if tests have none.
        compares: the classifier compares with a result of the good end, which must exist first.
        changes: rungs at which the programs change, once the sensors were read.
    """

    folder: Path
    stage: int
    ladder: Ladder
    search: Search
    classifier: Classifier
    setup: RungSetup
    find: Find
    on_line: OnLine
    on_probe: Callable[[Probe], None]
    max_minutes: float | None = None
    earlier_s: float = 0.0
    sensors: Sensors | None = None
    compares: bool = False
    workers: int = 1
    probes: list[Probe] = field(default_factory=list)
    changes: ProgramChanges | None = None
    _started: int = 0
    _sensed: bool = False
    _began: float = 0.0

    @property
    def good_end(self) -> int:
        if self.find == "regression":
            return 0
        return len(self.ladder.rungs) - 1

    def run(self) -> Conclusion:
        for probe in self.probes:
            self.search.add(probe.observation)
        self._started = len(self.probes)
        self.earlier_s += sum(probe.build_s + probe.test_s for probe in self.probes)
        self._began = time.monotonic()
        if self.workers == 1:
            while (conclusion := self.search.conclusion()) is None:
                self._read_sensors()
                if self._is_over():
                    return self.search.give_up(f"{self.max_minutes:g} minutes")
                wanted = self._next(1, [])
                if not wanted:
                    return self._nothing_left()
                self._take_in(self._probe(wanted[0], self.search.partner(wanted[0]), self._number()))
            return conclusion
        return self._run_side_by_side()

    @property
    def test(self) -> RungTest:
        env: dict[str, str] = {}
        if isinstance(self.classifier, Metric) and self.classifier.name is not None:
            env[KEEP_LINES] = escape(self.classifier.name)
        return RungTest(setup=self.setup, ladder=self.ladder, stage=self.stage, on_line=self.on_line, env=env)

    def _is_over(self) -> bool:
        if self.max_minutes is None:
            return False
        return self.earlier_s + time.monotonic() - self._began >= 60 * self.max_minutes

    def _read_sensors(self) -> None:
        """Once the ends differ: the search tries program changes first."""
        if self.sensors is None or self._sensed or len(self.ladder.rungs) < 3 or not self.search.is_inside:
            return
        self._sensed = True
        self.changes = self.sensors.changes(everywhere=False)
        if self.changes is not None:
            self.search.weigh(weigh_culprits(len(self.ladder.rungs), self.changes, alike=self._has_same_runtime))

    def _has_same_runtime(self, index: int) -> bool:
        """Whether a rung has the compiled packages of the one before: jaxlib and its plugins."""
        before, after = (
            {name: version for name, version in rung.pins.items() if FOLLOWS_JAX.fullmatch(name)}
            for rung in self.ladder.rungs[index - 1 : index + 1]
        )
        return before == after

    def cost_of(self, index: int) -> float:
        """Expected time of one test of a rung, its build included if it is not built yet."""
        tests = [probe.test_s for probe in self.probes if probe.test_s > 0]
        builds = [probe.build_s / probe.built for probe in self.probes if probe.built]
        test_s = fmean(tests or [GUESSED_TEST_S])
        if self.setup.is_ready(self.ladder, index, self.stage):
            return test_s
        return test_s + fmean(builds or [GUESSED_BUILD_S[self.ladder.rungs[index].kind]])

    def _run_side_by_side(self) -> Conclusion:
        with ThreadPoolExecutor(self.workers) as pool:
            running: dict[Future[Probe], int] = {}
            try:
                while (conclusion := self.search.conclusion()) is None:
                    if self._is_over():
                        return self.search.give_up(f"{self.max_minutes:g} minutes")
                    for index in self._next(self.workers - len(running), list(running.values())):
                        partner = self.search.partner(index)
                        running[pool.submit(self._probe, index, partner, self._number())] = index
                    if not running:
                        return self._nothing_left()
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        del running[future]
                        self._take_in(future.result())
                return conclusion
            finally:  # tests that still run when the culprit is known, or when we are interrupted, are of no use
                for future in running:
                    future.cancel()
                while any(not future.done() for future in running):
                    end_running()
                    wait(running, timeout=0.2)

    def _nothing_left(self) -> Conclusion:
        message = "No rung is left that could tell more."
        return Conclusion(kind="budget_out", message=message, tests=self.search.tests, builds=self.search.builds)

    def _next(self, room: int, running: list[int]) -> list[int]:
        if self.compares and self._reference() is None and not any(p.rung == self.good_end for p in self.probes):
            return [] if running else [self.good_end]  # the reference of the others comes first
        return self.search.next_probes(room, self.cost_of, running)

    def _number(self) -> int:
        self._started += 1
        return self._started

    def _take_in(self, probe: Probe) -> None:
        append_probe(self.folder, probe)
        self.probes.append(probe)
        self.search.add(probe.observation)
        self.on_probe(probe)

    def _probe(self, index: int, partner: int | None, number: int) -> Probe:
        rung = self.ladder.rungs[index]
        here = Path("probes") / f"s{self.stage}-{number:04d}-{file_name(index, rung.name)}"
        started_at, start = now(), time.monotonic()
        touched = [index] if partner is None else [index, partner]
        builds = sum(not self.setup.is_ready(self.ladder, number, self.stage) for number in touched)
        if partner is not None:
            return self._probe_pair(index, partner, number, here, builds)
        outcome, classification = self._test(index, self.folder / here)
        work = Work.split(time.monotonic() - start, outcome.duration_s, builds)
        if self.find == "fix":
            classification = swap_good_and_bad(classification)
        return self._record(index, here, started_at, work, outcome, classification)

    def _probe_pair(self, index: int, partner: int, number: int, here: Path, builds: int) -> Probe:
        """A rung and its partner, back to back in random order: any slowdown of the machine affects both."""
        started_at, start = now(), time.monotonic()
        order = [(index, here), (partner, here / "beside")]
        if Random(f"{self.setup.question.id} {self.stage} {number}").random() < 0.5:
            order.reverse()
        duration_s, values = 0.0, dict[int, float]()
        for position, folder in order:
            outcome, classification = self._test(position, self.folder / folder)
            duration_s += outcome.duration_s
            if classification.value is None:  # then the other is of no use
                break
            values[position] = classification.value
        work = Work.split(time.monotonic() - start, duration_s, builds)
        probe = self._record(position, here, started_at, work, outcome, classification)
        if len(values) < len(order):
            return probe
        named = {"rung": index, "name": self.ladder.rungs[index].name, "value": values[index]}
        return probe.model_copy(update={**named, "against": partner, "beside": values[partner]})

    def _record(
        self,
        index: int,
        here: Path,
        started_at: str,
        work: Work,
        outcome: Outcome,
        classification: Classification,
    ) -> Probe:
        return Probe(
            stage=self.stage,
            rung=index,
            name=self.ladder.rungs[index].name,
            outcome=classification.answer,
            value=classification.value,
            why=None if classification.why is None else hide_passwords(classification.why)[-2000:],
            state=outcome.state,
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            started_at=started_at,
            builds=work.builds,
            build_s=round(work.build_s, 3),
            test_s=round(work.test_s, 3),
            folder=str(here),
        )

    def _test(self, index: int, folder: Path) -> tuple[Outcome, Classification]:
        outcome = self.test.run(self.test.job(index, folder.name), index, folder)
        return outcome, self.classifier.read(outcome, folder, self._reference())

    def _reference(self) -> RunRecord | None:
        if not self.compares:
            return None
        for probe in self.probes:
            if probe.rung == self.good_end and (record := read_result(self.folder / probe.folder)) is not None:
                return record
        return None
