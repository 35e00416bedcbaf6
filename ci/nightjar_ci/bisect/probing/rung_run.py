"""The test of a bisection, run once on one rung by an executor, and the search for a good end that nobody knows.

In: the question, a ladder and the setup of its rungs. Out: the outcome of the test's process, with logs and result in a
separate folder. A good end is searched back from the bad end by 1, 2, 4, 8 ... rungs until a test is good; results are
kept in `ends.json`, so that an interrupted bisection does not test a rung again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from nightjar_ci.bisect.ladders.commits import unless_shallow
from nightjar_ci.bisect.ladders.rung import Ladder, Rung, file_name
from nightjar_ci.bisect.probing.classify import Classifier
from nightjar_ci.bisect.probing.rung_setup import RungSetup
from nightjar_ci.bisect.search.types import Outcome as Answer
from nightjar_ci.errors import EnvironmentFailedError, InputError
from nightjar_ci.executors import EXECUTORS, Task
from nightjar_ci.executors.ending import not_started
from nightjar_ci.formats import placeholders
from nightjar_ci.formats.documents import write_text
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_folder import now
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.resources import Resources
from nightjar_ci.night.run_job import add_counters, execute_on_sound_disk, read_output


def run_test(setup: RungSetup, index: int, folder: Path, env: Mapping[str, str] | None = None) -> Outcome:
    """Runs the test once on a rung.

    Args:
        folder: of the logs and the result; its name is the job's.
        env: variables of the test besides inherited ones, templates like a job's.
    """
    question, rung = setup.question, setup.ladder.rungs[index]
    executor = _executor_of(rung, question.executor, in_image=(question.environment or "").startswith("image:"))
    job = Job(
        id=folder.name,
        cell=file_name(index, rung.name),
        replicate=question.replicate,
        kind="train",
        command=tuple(map(escape, rung.fill(question.command, setup.folder_of(index)))),
        env=env or {},
        environment="current",
        executor=executor,
        timeout_s=question.timeout_s,
        adapter=question.adapter,
        pass_env=question.pass_env,
        secrets=question.secrets,
        measure=question.measure,
        resources=(question.resources if executor == question.executor else None) or Resources(),
    )
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob("*"):  # of a probe that a kill ended
        if left.is_symlink() or not left.is_dir():
            left.unlink()
    try:
        environment = setup.make(index)
    except EnvironmentFailedError as error:
        return not_started(job, f"it could not be made ready: {error.message}", error.hint, now())
    setup.on_line(f"testing {rung.name}")
    outcome = execute_on_sound_disk(Task(job, environment, folder, setup.on_line, setup.mask))
    outcome = read_output(job, outcome, folder, environment.folder or Path.cwd(), environment.interpreter)
    return add_counters(job, outcome, folder)


def _executor_of(rung: Rung, executor: str, *, in_image: bool) -> str:
    """The question's executor; releases inside a culprit image run on this machine if it runs images only."""
    if rung.kind in ("packages", "commit") and not in_image and "uv" not in EXECUTORS[executor].kinds:
        return "local"
    return executor


def escape(text: str) -> str:
    return "{out}".join(map(placeholders.escape, text.split("{out}")))


def find_good_end(n_rungs: int, read: Callable[[int], Answer]) -> int | None:
    """The nearest good rung that lies 1, 2, 4 ... rungs before the last; None if there is none.

    Args:
        read: tests a rung; a rung that cannot tell is stepped over, to the one before.

    >>> tested = []
    >>> find_good_end(100, lambda rung: tested.append(rung) or ("good" if rung < 80 else "bad")), tested
    (67, [98, 97, 95, 91, 83, 67])
    """
    step, rung = 1, n_rungs - 1
    while rung > 0:
        rung = max(0, n_rungs - 1 - step)
        answer = read(rung)
        while answer == "cannot_tell" and rung > 0:
            rung -= 1
            answer = read(rung)
        if answer == "good":
            return rung
        step = 2 * max(step, (n_rungs - 1 - rung + 1) // 2)
    return None


def shorten_ladder(setup: RungSetup, classifier: Classifier) -> Ladder:
    path = setup.folder / "ends.json"
    answers: dict[str, Answer] = {}
    if path.exists():
        answers = json.loads(path.read_text(encoding="utf-8"))
    rungs = setup.ladder.rungs

    def read(index: int) -> Answer:
        name = rungs[index].name
        if name not in answers:
            setup.on_line(f"looking for a good end: {name}")
            here = setup.folder / "ends" / file_name(index, name)
            answers[name] = classifier.read(run_test(setup, index, here), here, None).answer or "cannot_tell"
            write_text(path, json.dumps(answers))
        return answers[name]

    good = find_good_end(len(rungs), read)
    if good is None:
        tried = ", ".join(f"{name} {answer.replace('_', ' ')}" for name, answer in answers.items())
        hint = f"name a good end with --good, or check that the test passes anywhere: {path.with_suffix('')} has logs"
        if setup.ladder.repository is not None:
            hint = unless_shallow(Path(setup.ladder.repository), hint)
        path.unlink()  # the same call tests again: what was wrong may be mended
        setup.clear()
        raise InputError(f"no good end was found: {tried}.", hint)
    return setup.ladder.model_copy(update={"rungs": rungs[good:]})
