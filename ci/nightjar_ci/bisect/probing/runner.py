"""The worker of one ladder: it runs the probes that the search asks for on an executor.

In: results that may already hold earlier probes, a classifier, and the setup that makes rungs ready. Out: a
conclusion. Each probe is recorded before the search sees it. Probes run side by side, as many as there are workers:
the search is told which rungs are running and is asked for others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean

from nightjar_ci.bisect.ladders.rung import file_name
from nightjar_ci.bisect.probing.classify import Classifier, Metric, swap_good_and_bad
from nightjar_ci.bisect.probing.classify_by_gate import GateJudge
from nightjar_ci.bisect.probing.rung_run import escape, run_test
from nightjar_ci.bisect.probing.rung_setup import RungSetup
from nightjar_ci.bisect.probing.sense import Sensors
from nightjar_ci.bisect.search.conclude import conclude, give_up
from nightjar_ci.bisect.search.next_probes import are_ends_done, next_rungs
from nightjar_ci.bisect.search.results import Results
from nightjar_ci.bisect.search.types import Conclusion
from nightjar_ci.bisect.sensors.program_changes import weigh_culprits
from nightjar_ci.bisect.state import Probe, append_probe
from nightjar_ci.executors.process import KEEP_LINES, end_running
from nightjar_ci.formats.night_folder import now, read_result
from nightjar_ci.formats.run_record import RunRecord
from nightjar_ci.web.http import hide_passwords

GUESSED_BUILD_S = {"packages": 30.0, "image": 120.0, "commit": 30.0, "listed": 30.0}  # until the first is measured
GUESSED_TEST_S = 10.0


@dataclass(slots=True)
class Worker:
    """Runs the probes of one ladder.

    Attributes:
        max_minutes: time after which no probe is started; None for any.
        earlier_s: time that the other ladders of the bisection took.
        sensors: read the programs of rungs, to guide the search; None if tests have none.
    """

    setup: RungSetup
    results: Results
    classifier: Classifier
    on_probe: Callable[[Probe], None]
    max_minutes: float | None = None
    earlier_s: float = 0.0
    sensors: Sensors | None = None
    workers: int = 1
    probes: list[Probe] = field(default_factory=list)
    _started: int = 0
    _sensed: bool = False
    _began: float = 0.0

    @property
    def good_end(self) -> int:
        if self.setup.question.find == "regression":
            return 0
        return len(self.setup.ladder.rungs) - 1

    def run(self) -> Conclusion:
        for probe in self.probes:
            self.results.add(probe.observation)
        self._started = max((int(probe.folder.split("-")[1]) for probe in self.probes), default=0)
        self.earlier_s += sum(probe.build_s + probe.test_s for probe in self.probes)
        self._began = time.monotonic()
        with ThreadPoolExecutor(self.workers) as pool:
            running: dict[Future[Probe], int] = {}
            try:
                while (conclusion := conclude(self.results)) is None:
                    if not running:
                        self._read_sensors()
                    if self._is_over():
                        return give_up(self.results, f"{self.max_minutes:g} minutes")
                    for index in self._next(self.workers - len(running), list(running.values())):
                        self._started += 1
                        future = pool.submit(self._probe, index, self.results.partner(index), self._started)
                        running[future] = index
                    if not running:
                        message = "No rung is left that could tell more."
                        return Conclusion(kind="budget_out", message=message)
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

    def _is_over(self) -> bool:
        if self.max_minutes is None:
            return False
        return self.earlier_s + time.monotonic() - self._began >= 60 * self.max_minutes

    def _read_sensors(self) -> None:
        """Once the ends differ: the search tries program changes first."""
        rungs = self.setup.ladder.rungs
        if self.sensors is None or self._sensed or len(rungs) < 3 or not are_ends_done(self.results):
            return
        self._sensed = True
        changes = self.sensors.changes(everywhere=False)
        if changes is not None:
            alike = {at for at, pair in enumerate(pairwise(rungs), 1) if pair[0].runtime == pair[1].runtime}
            self.results.weigh(weigh_culprits(len(rungs), changes, alike))

    def cost_of(self, index: int) -> float:
        """Expected time of one test of a rung, its build included if it is not built yet."""
        tests = [probe.test_s for probe in self.probes if probe.test_s > 0]
        builds = [probe.build_s / probe.built for probe in self.probes if probe.built]
        test_s = fmean(tests or [GUESSED_TEST_S])
        if self.setup.is_ready(index):
            return test_s
        return test_s + fmean(builds or [GUESSED_BUILD_S[self.setup.ladder.rungs[index].kind]])

    def _next(self, room: int, running: list[int]) -> list[int]:
        compares = isinstance(self.classifier, GateJudge)
        if compares and self._reference() is None and not any(p.rung == self.good_end for p in self.probes):
            return [] if running else [self.good_end]  # the reference of the others comes first
        return next_rungs(self.results, room, self.cost_of, running)

    def _take_in(self, probe: Probe) -> None:
        append_probe(self.setup.folder, probe)
        self.probes.append(probe)
        self.results.add(probe.observation)
        self.on_probe(probe)

    def _probe(self, index: int, partner: int | None, number: int) -> Probe:
        """A test of a rung, or of it and its partner, back to back: any slowdown of the machine affects both."""
        rungs, stage = self.setup.ladder.rungs, self.setup.stage
        here = Path("probes") / f"s{stage}-{number:04d}-{file_name(index, rungs[index].name)}"
        order = [(index, here)]
        if partner is not None:
            order.append((partner, here / "beside"))
            if Random(f"{self.setup.question.id} {stage} {number}").random() < 0.5:
                order.reverse()
        started_at, start, tested_s, values = now(), time.monotonic(), 0.0, dict[int, float]()
        builds = sum(not self.setup.is_ready(position) for position, _ in order)
        for position, folder in order:
            outcome = run_test(self.setup, position, self.setup.folder / folder, self._env)
            classification = self.classifier.read(outcome, self.setup.folder / folder, self._reference())
            tested_s += outcome.duration_s
            if classification.value is None:  # then the other is of no use
                break
            values[position] = classification.value
        build_s, test_s = split_time(time.monotonic() - start, tested_s, builds)
        if self.setup.question.find == "fix":
            classification = swap_good_and_bad(classification)
        probe = Probe(
            stage=stage,
            rung=position,
            name=rungs[position].name,
            outcome=classification.answer,
            value=classification.value,
            why=None if classification.why is None else hide_passwords(classification.why)[-2000:],
            state=outcome.state,
            exit_code=outcome.exit_code,
            signal=outcome.signal,
            started_at=started_at,
            builds=builds,
            build_s=round(build_s, 3),
            test_s=round(test_s, 3),
            folder=str(here),
        )
        if partner is None or len(values) < 2:
            return probe
        named = {"rung": index, "name": rungs[index].name, "value": values[index]}
        return probe.model_copy(update={**named, "against": partner, "beside": values[partner]})

    @property
    def _env(self) -> dict[str, str]:
        if isinstance(self.classifier, Metric) and self.classifier.name is not None:
            return {KEEP_LINES: escape(self.classifier.name)}
        return {}

    def _reference(self) -> RunRecord | None:
        if not isinstance(self.classifier, GateJudge):
            return None
        for probe in self.probes:
            if probe.rung == self.good_end and (record := read_result(self.setup.folder / probe.folder)) is not None:
                return record
        return None


def split_time(took_s: float, tested_s: float, builds: int) -> tuple[float, float]:
    """The time of the builds, and of the rest: the test, once or in a pair, and its start."""
    if not builds:
        return 0.0, took_s
    return max(0.0, took_s - tested_s), tested_s
