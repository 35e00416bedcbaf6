"""A whole bisection, from its question to its answer: one ladder after the other, each probe kept.

In: a `Plan`. Out: an `Answer`, from which the caller writes `answer.json` and `report.html`. If the culprit is a merge,
the branch that it merged is bisected next, with the rest of the budget.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from nightjar_ci.bisect.ladders.inner import Sources, make_inner_ladder
from nightjar_ci.bisect.ladders.rung import Ladder
from nightjar_ci.bisect.probing.classify import Classifier, quote_failure
from nightjar_ci.bisect.probing.rung_run import RungTest, shorten_ladder
from nightjar_ci.bisect.probing.rung_setup import OnLine, RungSetup
from nightjar_ci.bisect.probing.runner import Worker
from nightjar_ci.bisect.probing.sense import Sensors
from nightjar_ci.bisect.result.answer import (
    Answer,
    Side,
    culprit_names,
    describe_effect,
    describe_failures,
    explain_message,
    second_names,
    state_posterior,
    summarize_rungs,
    title,
    why_not,
)
from nightjar_ci.bisect.result.difference import (
    Change,
    describe_commits,
    describe_runtime,
    diff_pins,
)
from nightjar_ci.bisect.result.explain import PAGE, explain
from nightjar_ci.bisect.result.reproduce import render_reproduction
from nightjar_ci.bisect.search.search import Search
from nightjar_ci.bisect.search.types import Conclusion, SearchSettings
from nightjar_ci.bisect.state import (
    Bisection,
    Find,
    Probe,
    Question,
    Stage,
    locked,
    read_bisection,
    read_probes,
    write_bisection,
)
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.formats.night_folder import now
from nightjar_ci.settings import Settings
from nightjar_ci.untrusted.masking import make_mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that a bisection needs.

    Attributes:
        make_ladder: makes the first ladder; not called when the bisection is resumed.
        search: confidence and budget; `metric` is the direction that users call better, even for a fix.
        paired: each test of a metric is a pair, with the good end or, in the check of an answer, with its neighbour.
        seeks_end: no good end is known; the ladder is searched for one first.
        max_minutes: time that builds and tests may take, earlier runs of the same bisection included; None for any.
        sensors: the programs of rungs are read too.
        sources: of the ladder inside a culprit.
    """

    question: Question
    make_ladder: Callable[[], Ladder]
    classifier: Classifier
    search: SearchSettings
    sources: Sources
    paired: bool = False
    seeks_end: bool = False
    max_minutes: float | None = None
    sensors: bool = False
    compares: bool = False
    workers: int = 1
    python: str | None = None
    metric: str | None = None
    explain: bool = False

    @property
    def find(self) -> Find:
        return self.question.find

    @property
    def settings(self) -> SearchSettings:
        """The search's settings: for a fix, the change is an improvement, and the good end is the last."""
        if self.search.metric is None:
            return self.search
        if self.find == "regression":
            return replace(self.search, reference="first" if self.paired else None)
        metric: Literal["lower", "higher"] = "higher" if self.search.metric == "lower" else "lower"
        return replace(self.search, metric=metric, reference="last" if self.paired else None)


def run_bisection(
    plan: Plan, folder: Path, settings: Settings, on_line: OnLine, on_probe: Callable[[Probe], None]
) -> Answer:
    """Runs a bisection to its answer, or resumes an interrupted one."""
    mask = make_mask(plan.question.secrets, os.environ)
    on_line = mask.listener(on_line)
    with locked(folder), mask.guard(folder):
        bisection = read_bisection(folder)
        if bisection is None:
            ladder = plan.make_ladder()
            if plan.seeks_end:
                setup = RungSetup(folder, plan.question, settings, plan.python, mask)
                test = RungTest(setup=setup, ladder=ladder, stage=0, on_line=on_line)
                ladder = shorten_ladder(test, plan.classifier, folder)
            stages = (Stage(ladder=ladder),)
            bisection = Bisection(
                id=plan.question.id, find=plan.find, question=plan.question, created_at=now(), stages=stages
            )
            write_bisection(folder, bisection)
        probes = read_probes(folder)
        if probes:
            on_line(f"going on after {len(probes)} probes in {folder}")
        setup = RungSetup(folder, plan.question, settings, plan.python, mask)
        workers: list[Worker] = []
        while True:
            number = len(workers)
            rate = _failure_rate(workers[-1]) if workers else None
            worker = _worker(plan, bisection, number, rate, probes, folder, setup, on_line, on_probe)
            workers.append(worker)
            conclusion = _without_clock(worker, worker.run())
            probes = [*(probe for probe in probes if probe.stage != number), *worker.probes]
            deeper = _next_stage(plan, bisection, number, conclusion, len(probes), on_line)
            if not isinstance(deeper, Stage):
                break
            if number + 1 == len(bisection.stages):
                bisection = bisection.model_copy(update={"stages": (*bisection.stages, deeper)})
                write_bisection(folder, bisection)
            on_line(f"found {deeper.inside}: bisecting what is inside of it, {len(deeper.ladder.rungs)} rungs")
        answer = make_answer(plan, bisection, workers, conclusion, probes)
        if deeper is not None:
            on_line(deeper)
            answer = answer.model_copy(update={"notes": (*answer.notes, deeper)})
        if plan.explain and conclusion.culprits is not None:
            texts = tuple(map(mask.text, _explain(plan, worker, conclusion, folder, on_line)))
            pages = tuple(str(page.relative_to(folder)) for page in sorted(folder.glob(f"explain*/diff/{PAGE}")))
            answer = answer.model_copy(update={"explained": texts, "pages": pages})
        setup.clear([stage.ladder for stage in bisection.stages])
        return answer


def _worker(
    plan: Plan,
    bisection: Bisection,
    number: int,
    failure_rate: float | None,
    probes: Sequence[Probe],
    folder: Path,
    setup: RungSetup,
    on_line: OnLine,
    on_probe: Callable[[Probe], None],
) -> Worker:
    """The worker of one stage; the whole bisection shares one budget of tests."""
    ladder = bisection.stages[number].ladder
    before = sum(probe.stage < number for probe in probes)
    limits = replace(plan.settings, max_tests=max(2, plan.settings.max_tests - before))
    if failure_rate is not None:
        limits = replace(limits, failure_rate=failure_rate)
    sensors: Sensors | None = None
    if plan.sensors:
        test = RungTest(setup=setup, ladder=ladder, stage=number, on_line=on_line)
        sensors = Sensors(folder=folder, test=test)
    return Worker(
        folder=folder,
        stage=number,
        ladder=ladder,
        search=Search(len(ladder.rungs), limits),
        classifier=plan.classifier,
        setup=setup,
        find=bisection.find,
        on_line=on_line,
        on_probe=on_probe,
        max_minutes=plan.max_minutes,
        earlier_s=sum(probe.build_s + probe.test_s for probe in probes if probe.stage != number),
        sensors=sensors,
        compares=plan.compares,
        workers=plan.workers,
        probes=[probe for probe in probes if probe.stage == number],
    )


def _failure_rate(above: Worker) -> float | None:
    """How often the culprit of an outer ladder fails, for an exit code: what is inside of it fails as often."""
    conclusion = above.search.conclusion()
    if above.search.settings.metric is not None or conclusion is None or conclusion.bad is None:
        return None
    return conclusion.bad.low


def _next_stage(
    plan: Plan, bisection: Bisection, number: int, conclusion: Conclusion, tests: int, on_line: OnLine
) -> Stage | str | None:
    """The ladder inside a culprit, if the budget allows, or why it cannot be bisected."""
    if number + 1 < len(bisection.stages):
        return bisection.stages[number + 1]
    if conclusion.kind != "culprit" or conclusion.culprit is None:
        return None
    above = bisection.stages[number].ladder
    if tests + 2 > plan.settings.max_tests:
        return None
    ladder = make_inner_ladder(above, conclusion.culprit, plan.sources, on_line)
    if ladder is None or isinstance(ladder, str):
        return ladder
    return Stage(ladder=ladder, inside=above.rungs[conclusion.culprit].name)


def make_answer(
    plan: Plan, bisection: Bisection, workers: Sequence[Worker], conclusion: Conclusion, probes: Sequence[Probe]
) -> Answer:
    """The answer of the last stage; if its whole branch is good, the merge itself is the culprit."""
    number, worker = len(workers) - 1, workers[-1]
    stage = bisection.stages[number]
    if stage.inside is not None and conclusion.kind != "culprit":
        above = bisection.stages[number - 1]
        note = f"Inside of {stage.inside}: {conclusion.message}"
        if conclusion.kind == "bad_end_is_good" and stage.is_branch_of(above):
            note += " So it is the merge itself: its two sides do not go together."
        notes = (*above.ladder.notes, note)
        stage = above.model_copy(update={"ladder": above.ladder.model_copy(update={"notes": notes})})
        worker = workers[number - 1]
        above_conclusion = worker.search.conclusion()
        assert above_conclusion is not None, "the stage above had concluded"
        conclusion = above_conclusion
    rungs = stage.ladder.rungs
    places = summarize_rungs(
        rungs, worker.probes, state_posterior(list(worker.search.posterior()), conclusion), bisection.find
    )
    before, after, changes = _sides(plan, bisection.find, worker, conclusion.culprits)
    second = _sides(plan, bisection.find, worker, conclusion.second)
    programs = _compare_programs(worker, conclusion)
    sensed = [worker.sensors.work() for worker in workers if worker.sensors is not None]
    return Answer(
        id=bisection.id,
        find=bisection.find,
        kind=conclusion.kind,
        title=title(conclusion, rungs, bisection.find, stage.inside),
        message=explain_message(conclusion, bisection.find),
        culprits=tuple(culprit_names(conclusion, rungs)),
        second=tuple(second_names(conclusion, rungs)),
        probability=conclusion.probability,
        effect=describe_failures(places, conclusion) if plan.metric is None else describe_effect(conclusion),
        inside=stage.inside,
        changes=tuple(changes),
        before=before,
        after=after,
        second_changes=tuple(second[2]),
        second_before=second[0],
        second_after=second[1],
        places=places,
        probes=tuple(worker.probes),
        command=bisection.question.command,
        metric=plan.metric,
        tests=len(probes),
        builds=sum(probe.built for probe in probes) + sum(built for built, _ in sensed),
        duration_s=sum(probe.build_s + probe.test_s for probe in probes) + sum(took_s for _, took_s in sensed),
        notes=(
            *why_not(places),
            *quote_failure(worker.folder, worker.probes, conclusion.kind, plan.question.executor),
            *conclusion.remarks,
            *stage.ladder.notes,
            *_describe_runtime(worker, conclusion),
        ),
        programs=tuple(programs),
    )


def _describe_runtime(worker: Worker, conclusion: Conclusion) -> list[str]:
    lines: list[str | None] = []
    if conclusion.culprits is not None and worker.ladder.rungs[0].kind != "commit":
        first, last = conclusion.culprits
        lines.append(describe_runtime(worker.ladder.rungs[first - 1], worker.ladder.rungs[last]))
    return [line for line in lines if line is not None]


def _compare_programs(worker: Worker, conclusion: Conclusion) -> list[str]:
    """How the programs of both sides of the (first) change differ."""
    if worker.sensors is None or conclusion.culprits is None:
        return []
    first, last = conclusion.culprits
    return worker.sensors.compare(first - 1, last)


def _without_clock(worker: Worker, conclusion: Conclusion) -> Conclusion:
    """The only rung at which the programs change, if any, when the machine is too noisy to tell by time."""
    if worker.sensors is None or conclusion.kind != "too_loud":
        return conclusion
    worker.changes = worker.sensors.changes(everywhere=True)
    if worker.changes is None or worker.changes.exact is None:
        return conclusion
    low, high = worker.changes.exact
    message = f"{conclusion.message} The compiled programs change once between the ends, at rung {high}."
    return replace(conclusion, kind="program_change", message=message, culprits=(low + 1, high), probability=0.0)


def _explain(plan: Plan, worker: Worker, conclusion: Conclusion, folder: Path, on_line: OnLine) -> tuple[str, ...]:
    """Captures of both sides of the culprit, compared; of two changes, of each."""
    if plan.question.executor != "local":
        return ("Both sides can be explained where tests run on this machine (the executor 'local') only.",)
    changes = [change for change in (conclusion.culprits, conclusion.second) if change is not None]
    texts: list[str] = []
    for number, (first, last) in enumerate(changes, start=1):
        if len(changes) > 1:
            old, new = (worker.ladder.rungs[index].name for index in (first - 1, last))
            texts.append(f"Change {number}, from {old} to {new}:")
        change_folder = folder / "explain" if number == 1 else folder / f"explain-{number}"
        texts += _explain_change(plan, worker, (first - 1, last), change_folder, on_line)
    return tuple(texts)


def _explain_change(
    plan: Plan, worker: Worker, indices: tuple[int, int], folder: Path, on_line: OnLine
) -> tuple[str, ...]:
    setup, ladder, stage = worker.setup, worker.ladder, worker.stage
    sides = []
    for index in indices:
        rung = ladder.rungs[index]
        try:
            environment = setup.make(ladder, index, stage, on_line)
        except EnvironmentFailedError as error:
            return (f"{rung.name} could not be made ready again: {error.message}",)
        command = setup.command(rung, setup.folder_of(rung, index, stage), plan.question.command)
        sides.append((rung.name, environment, command))
    return explain(sides, folder, 3 * plan.question.timeout_s, on_line, plan.question.inherited)


def _sides(
    plan: Plan, find: Find, worker: Worker, culprits: tuple[int, int] | None
) -> tuple[Side | None, Side | None, list[Change]]:
    if culprits is None:
        return None, None, []
    rungs = worker.ladder.rungs
    first, last = culprits[0] - 1, culprits[1]
    setup = worker.setup
    old, new = (
        Side(
            name=rungs[index].name,
            answers="good" if (index == first) == (find == "regression") else "bad",
            reproduce=render_reproduction(
                rungs[index],
                worker.ladder,
                setup.question,
                folder=setup.folder_of(rungs[index], index, worker.stage),
                python=plan.python,
            ),
        )
        for index in (first, last)
    )
    if rungs[last].kind == "commit":
        return old, new, describe_commits(worker.ladder, rungs[first], rungs[last])
    return old, new, diff_pins(rungs[first], rungs[last], setup.prefix(worker.ladder, last))
