"""A whole bisection, from its question to its answer: one ladder after the other, each probe kept.

In: a `Plan`. Out: an `Answer`, from which the caller writes `answer.json` and `report.html`. If the culprit is a merge,
the branch that it merged is bisected next, with the rest of the budget.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nightjar_ci.bisect.ladders.inner import Sources, make_inner_ladder
from nightjar_ci.bisect.ladders.rung import Ladder, OnLine
from nightjar_ci.bisect.probing.classify import Classifier, quote_failure
from nightjar_ci.bisect.probing.rung_run import shorten_ladder
from nightjar_ci.bisect.probing.rung_setup import RungSetup
from nightjar_ci.bisect.probing.runner import Worker
from nightjar_ci.bisect.probing.sense import Sensors
from nightjar_ci.bisect.result.answer import (
    Answer,
    Side,
    describe_effect,
    describe_failures,
    find_wall_time,
    name_rungs,
    state_posterior,
    summarize_rungs,
    title,
    why_not,
)
from nightjar_ci.bisect.result.difference import Change, describe_commits, describe_runtime, diff_pins
from nightjar_ci.bisect.result.explain import PAGE, explain, find_line
from nightjar_ci.bisect.result.reproduce import render_reproduction
from nightjar_ci.bisect.search.conclude import conclude
from nightjar_ci.bisect.search.results import Results
from nightjar_ci.bisect.search.types import Conclusion, SearchSettings
from nightjar_ci.bisect.state import (
    Bisection,
    Probe,
    Question,
    Stage,
    read_bisection,
    read_probes,
    write_bisection,
)
from nightjar_ci.causes.explained import render_question
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.formats.night_folder import now
from nightjar_ci.night.lock import hold_folder
from nightjar_ci.settings import Settings
from nightjar_ci.untrusted.masking import make_mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that a bisection needs.

    Attributes:
        make_ladder: makes the first ladder; not called when the bisection is resumed.
        search: confidence and budget.
        sources: of the ladder inside a culprit.
        seeks_end: no good end is known; the ladder is searched for one first.
        max_minutes: time that builds and tests may take, earlier runs of the same bisection included; None for any.
        sensors: the programs of rungs are read too.
    """

    question: Question
    make_ladder: Callable[[], Ladder]
    classifier: Classifier
    search: SearchSettings
    sources: Sources
    seeks_end: bool = False
    max_minutes: float | None = None
    sensors: bool = False
    workers: int = 1
    explain: bool = False


def run_bisection(
    plan: Plan, folder: Path, settings: Settings, on_line: OnLine, on_probe: Callable[[Probe], None]
) -> Answer:
    """Runs a bisection to its answer, or resumes an interrupted one."""
    mask = make_mask(plan.question.secrets, os.environ)
    on_line = mask.listener(on_line)
    folder.mkdir(parents=True, exist_ok=True)
    with hold_folder(folder), mask.guard(folder):
        bisection = read_bisection(folder)
        if bisection is None:
            ladder = plan.make_ladder()
            if plan.seeks_end:
                setup = RungSetup(folder, plan.question, settings, ladder, on_line, mask=mask)
                ladder = shorten_ladder(setup, plan.classifier)
            bisection = Bisection(question=plan.question, created_at=now(), stages=(Stage(ladder=ladder),))
            write_bisection(folder, bisection)
        lasts = [len(stage.ladder.rungs) - 1 for stage in bisection.stages]
        # an end that could not be prepared is tried again: the cause may be mended, and no other rung can stand in
        kept = read_probes(folder)
        probes = [one for one in kept if one.state != "not_started" or 0 < one.rung < lasts[one.stage]]
        if probes:
            on_line(f"going on after {len(probes)} probes in {folder}")
        workers: list[Worker] = []
        while True:
            number = len(workers)
            setup = RungSetup(folder, plan.question, settings, bisection.stages[number].ladder, on_line, number, mask)
            worker = _make_worker(plan, setup, workers, probes, on_probe)
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
        answer = make_answer(plan.question, bisection, workers, conclusion, probes)
        if deeper is not None:
            on_line(deeper)
            answer = answer.model_copy(update={"notes": (*answer.notes, deeper)})
        if conclusion.culprits is not None and (plan.explain or is_of_numbers(plan.question)):
            texts = tuple(map(mask.text, _explain(setup, conclusion, whole=plan.explain)))
            pages = tuple(str(page.relative_to(folder)) for page in sorted(folder.glob(f"explain*/diff/{PAGE}")))
            answer = answer.model_copy(update={"explained": texts, "pages": pages})
        for worker in workers:
            worker.setup.clear()
        return answer


def _make_worker(
    plan: Plan, setup: RungSetup, above: Sequence[Worker], probes: Sequence[Probe], on_probe: Callable[[Probe], None]
) -> Worker:
    """The worker of one stage; the whole bisection shares one budget of tests."""
    before = sum(probe.stage < setup.stage for probe in probes)
    limits = replace(plan.search, max_tests=max(2, plan.search.max_tests - before))
    if above and (rate := _failure_rate(above[-1])) is not None:
        limits = replace(limits, failure_rate=rate)
    return Worker(
        setup=setup,
        results=Results(len(setup.ladder.rungs), limits),
        classifier=plan.classifier,
        on_probe=on_probe,
        max_minutes=plan.max_minutes,
        earlier_s=sum(probe.build_s + probe.test_s for probe in probes if probe.stage != setup.stage),
        sensors=Sensors(setup) if plan.sensors else None,
        workers=plan.workers,
        probes=[probe for probe in probes if probe.stage == setup.stage],
    )


def _failure_rate(above: Worker) -> float | None:
    """How often the culprit of an outer ladder fails, for an exit code: what is inside of it fails as often."""
    conclusion = conclude(above.results)
    if above.results.settings.metric is not None or conclusion is None or conclusion.bad is None:
        return None
    if above.results.settings.seeks_fix and conclusion.good is not None:
        return 1 - conclusion.good.high
    return conclusion.bad.low


def _next_stage(
    plan: Plan, bisection: Bisection, number: int, conclusion: Conclusion, tests: int, on_line: OnLine
) -> Stage | str | None:
    """The ladder inside a culprit, if the budget allows, or why it cannot be bisected."""
    if number + 1 < len(bisection.stages):
        return bisection.stages[number + 1]
    if conclusion.kind != "culprit" or conclusion.culprit is None or tests + 2 > plan.search.max_tests:
        return None
    above = bisection.stages[number].ladder
    ladder = make_inner_ladder(above, conclusion.culprit, plan.sources, on_line)
    if isinstance(ladder, Ladder):
        return Stage(ladder=ladder, inside=above.rungs[conclusion.culprit].name)
    return ladder


def make_answer(
    question: Question,
    bisection: Bisection,
    workers: Sequence[Worker],
    conclusion: Conclusion,
    probes: Sequence[Probe],
) -> Answer:
    """The answer of the last stage; if its whole branch is good, the merge itself is the culprit."""
    worker, stage = workers[-1], bisection.stages[len(workers) - 1]
    notes = stage.ladder.notes
    if stage.inside is not None and conclusion.kind != "culprit":
        above = bisection.stages[len(workers) - 2]
        note = f"Inside of {stage.inside}: {conclusion.message}"
        if conclusion.kind == "bad_end_is_good" and stage.is_branch_of(above):
            note += " So it is the merge itself: its two sides do not go together."
        worker, stage, notes = workers[-2], above, (*above.ladder.notes, note)
        above_conclusion = conclude(worker.results)
        assert above_conclusion is not None, "the stage above had concluded"
        conclusion = above_conclusion
    rungs, find = stage.ladder.rungs, question.find
    posterior = state_posterior(list(worker.results.posterior()), conclusion)
    places = summarize_rungs(rungs, worker.probes, posterior, find)
    before, after, changes = _sides(worker, conclusion.culprits)
    second_before, second_after, second_changes = _sides(worker, conclusion.second)
    programs: list[str] = []
    runtime: list[str] = []
    if conclusion.culprits is not None:
        first, last = conclusion.culprits[0] - 1, conclusion.culprits[1]
        runtime = describe_runtime(rungs[first], rungs[last])
        if worker.sensors is not None:
            programs = worker.sensors.compare(first, last)
    sensed = [worker.sensors.work() for worker in workers if worker.sensors is not None]
    return Answer(
        id=question.id,
        find=find,
        kind=conclusion.kind,
        title=title(conclusion, rungs, find, stage.inside),
        message=conclusion.message,
        culprits=name_rungs(conclusion.culprits, rungs),
        second=name_rungs(conclusion.second, rungs),
        probability=conclusion.probability,
        effect=describe_failures(places, conclusion) if question.metric is None else describe_effect(conclusion),
        inside=stage.inside,
        changes=changes,
        before=before,
        after=after,
        second_changes=second_changes,
        second_before=second_before,
        second_after=second_after,
        places=places,
        probes=tuple(worker.probes),
        command=question.command,
        metric=question.metric,
        tests=len(probes),
        builds=sum(probe.built for probe in probes) + sum(built for built, _ in sensed),
        duration_s=sum(probe.build_s + probe.test_s for probe in probes) + sum(took_s for _, took_s in sensed),
        wall_s=find_wall_time(probes),
        notes=(
            *why_not(places),
            *quote_failure(worker.setup.folder, worker.probes, conclusion.kind, question),
            *conclusion.remarks,
            *notes,
            *runtime,
        ),
        programs=tuple(programs),
    )


def _without_clock(worker: Worker, conclusion: Conclusion) -> Conclusion:
    """The only rung at which the programs change, if any, when the machine is too noisy to tell by time."""
    if worker.sensors is None or conclusion.kind != "too_loud":
        return conclusion
    changes = worker.sensors.changes(everywhere=True)
    if changes is None or changes.exact is None:
        return conclusion
    low, high = changes.exact
    message = f"{conclusion.message} The compiled programs change once between the ends, at rung {high}."
    return replace(conclusion, kind="program_change", message=message, culprits=(low + 1, high), probability=0.0)


def is_of_numbers(question: Question) -> bool:
    """Whether the test trains a preset on this machine, and is judged by its curves."""
    judge, metric = question.classifier.get("like", "/facts").rpartition("/")[2], question.metric or ""
    is_judged = judge != "facts" or re.search("loss|accuracy", metric) is not None
    return is_judged and question.executor == "local" and render_question(question.command) is not None


def _explain(setup: RungSetup, conclusion: Conclusion, *, whole: bool) -> list[str]:
    """The line of the culprit's change, and captures of both sides if wanted; of two changes, of each."""
    question, rungs = setup.question, setup.ladder.rungs
    if question.executor != "local":
        return ["Both sides can be explained where tests run on this machine (the executor 'local') only."]
    changes = [change for change in (conclusion.culprits, conclusion.second) if change is not None]
    texts: list[str] = []
    for number, (first, last) in enumerate(changes, start=1):
        folder, indices = setup.folder / "explain", (first - 1, last)
        if len(changes) > 1:
            old, new = (rungs[index].name for index in indices)
            texts.append(f"Change {number}, from {old} to {new}:")
        if number > 1:
            folder = setup.folder / f"explain-{number}"
        try:
            sides = [
                (rungs[index].name, setup.make(index), rungs[index].fill(question.command, setup.folder_of(index)))
                for index in indices
            ]
        except EnvironmentFailedError as error:
            texts.append(f"It could not be made ready again: {error.message}")
            continue
        texts += find_line(sides, folder / "line", setup.on_line, question.inherited)
        if whole:
            texts += explain(sides, folder, 3 * question.timeout_s, setup.on_line, question.inherited)
    return texts


def _sides(worker: Worker, culprits: tuple[int, int] | None) -> tuple[Side | None, Side | None, tuple[Change, ...]]:
    if culprits is None:
        return None, None, ()
    setup, first, last = worker.setup, culprits[0] - 1, culprits[1]
    rungs = setup.ladder.rungs
    old, new = (
        Side(
            name=rungs[index].name,
            answers="good" if (index == first) == (setup.question.find == "regression") else "bad",
            reproduce=render_reproduction(rungs[index], setup.ladder, setup.question, setup.folder_of(index)),
        )
        for index in (first, last)
    )
    if rungs[last].kind == "commit":
        return old, new, describe_commits(setup.ladder, rungs[first], rungs[last])
    return old, new, diff_pins(rungs[first], rungs[last], setup.prefix(last))
