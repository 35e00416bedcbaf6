"""The test of a bisection, run once on one rung by an executor, and the search for a good end that nobody knows.

In: the question, a ladder and the setup of its rungs. Out: the outcome of the test's process, with logs and result in a
separate folder. A good end is searched back from the bad end by 1, 2, 4, 8 ... rungs until a test is good; results are
kept in `ends.json`, so that an interrupted bisection does not test a rung again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nightjar_ci.bisect.ladders.rung import Ladder, Rung, file_name
from nightjar_ci.bisect.probing.classify import Classifier
from nightjar_ci.bisect.probing.rung_setup import OnLine, RungSetup
from nightjar_ci.bisect.search.types import Outcome as Answer
from nightjar_ci.errors import EnvironmentFailedError, InputError
from nightjar_ci.executors import EXECUTORS, Task
from nightjar_ci.executors.ending import not_started
from nightjar_ci.formats.documents import write_text
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_folder import now
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.night.run_job import execute_on_sound_disk, read_output


@dataclass(frozen=True, slots=True, kw_only=True)
class RungTest:
    """Runs the test on rungs of one ladder.

    Attributes:
        env: variables of the test besides inherited ones, templates like a job's.
    """

    setup: RungSetup
    ladder: Ladder
    stage: int
    on_line: OnLine
    env: Mapping[str, str] = field(default_factory=dict)

    def job(self, index: int, name: str) -> Job:
        question, rung = self.setup.question, self.ladder.rungs[index]
        rung_folder = self.setup.folder_of(rung, index, self.stage)
        command = [escape(part) for part in self.setup.command(rung, rung_folder, question.command)]
        return Job(
            id=name,
            cell=file_name(index, rung.name),
            replicate=question.replicate,
            kind="train",
            command=tuple(command),
            env=self.env,
            environment="current",
            executor=_executor_of(rung, question.executor, in_image=(question.environment or "").startswith("image:")),
            timeout_s=question.timeout_s,
            adapter=question.adapter,
            pass_env=question.pass_env,
            secrets=question.secrets,
        )

    def run(self, job: Job, index: int, folder: Path) -> Outcome:
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob("*"):  # of a probe that a kill ended
            if left.is_symlink() or not left.is_dir():
                left.unlink()
        try:
            environment = self.setup.make(self.ladder, index, self.stage, self.on_line)
        except EnvironmentFailedError as error:
            return not_started(job, f"it could not be made ready: {error.message}", error.hint, now())
        self.on_line(f"testing {self.ladder.rungs[index].name}")
        outcome = execute_on_sound_disk(Task(job, environment, folder, self.on_line, self.setup.mask))
        return read_output(job, outcome, folder, environment.folder or Path.cwd(), environment.interpreter)


def _executor_of(rung: Rung, executor: str, *, in_image: bool) -> str:
    """The question's executor; releases inside a culprit image run on this machine."""
    if rung.kind in ("packages", "commit") and not in_image and "image" in EXECUTORS[executor].kinds:
        return "local"
    return executor


def escape(text: str) -> str:
    return "{out}".join(part.replace("{", "{{").replace("}", "}}") for part in text.split("{out}"))


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


def shorten_ladder(test: RungTest, classifier: Classifier, folder: Path) -> Ladder:
    path = folder / "ends.json"
    answers: dict[str, Answer] = {}
    if path.exists():
        answers = json.loads(path.read_text(encoding="utf-8"))
    rungs = test.ladder.rungs

    def read(index: int) -> Answer:
        name = rungs[index].name
        if name not in answers:
            test.on_line(f"looking for a good end: {name}")
            here = folder / "ends" / file_name(index, name)
            outcome = test.run(test.job(index, here.name), index, here)
            answers[name] = classifier.read(outcome, here, None).answer or "cannot_tell"
            write_text(path, json.dumps(answers))
        return answers[name]

    good = find_good_end(len(rungs), read)
    if good is None:
        raise InputError(
            f"no good end was found: {', '.join(f'{name} {answer}' for name, answer in answers.items())}.".replace(
                "_", " "
            ),
            "name a good end with --good, or check that the test passes anywhere",
        )
    return test.ladder.model_copy(update={"rungs": rungs[good:]})
