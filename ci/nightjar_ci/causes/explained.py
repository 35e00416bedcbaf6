"""The first line that computes other numbers, behind a red curve: `nightjar-models explain`, run as a job of the night.

In: the causes of a night and its jobs. Out: the folder `<night>/explain/<cell>`, whose output opens the cause's card.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from nightjar_ci.causes.causes import Cause
from nightjar_ci.environments.prepare import Environments, with_requirements
from nightjar_ci.errors import EnvironmentFailedError
from nightjar_ci.executors.process import STDOUT
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_results import NightResults
from nightjar_ci.night.run_job import run_job
from nightjar_ci.untrusted.files import read_untrusted

FOLDER = "explain"
LIMIT_S = 300.0  # one run a night
_MOST_CHARACTERS = 300


def find_question(cause: Cause, results: NightResults) -> list[str] | None:
    """The command that names the first line which computes other numbers; None unless a preset met another JAX."""
    if cause.kind != "regressed":
        return None
    verdict = cause.verdicts[0]
    outcome = next((outcome for outcome in results.night.jobs if outcome.cell == verdict.cell), None)
    # A job wrote the versions into its result: nothing but a version may become a requirement.
    changes = (re.fullmatch(r"(jax|jaxlib|flax) (\d[\w.+!]*) -> \d\S*", change) for change in cause.changes)
    pins = [f"{change[1]}=={change[2]}" for change in changes if change]
    if verdict.judge != "convergence" or outcome is None or not pins:
        return None
    words = render_question(outcome.command)
    return words and [*words, ",".join(pins)]


def render_question(command: Sequence[str]) -> list[str] | None:
    """The command that compares a preset with itself in another environment, whose name is to follow.

    >>> render_question(["nightjar-models", "train", "gpt_tiny", "--set", "model.layers=1", "--out", "here"])
    ['nightjar-models', 'explain', 'gpt_tiny', '--set', 'model.layers=1', '--against']
    """
    if list(command[:2]) != ["nightjar-models", "train"]:
        return None
    preset, *options = command[2:]
    settings = [word for option, value in pairwise(options) if option == "--set" for word in (option, value)]
    return ["nightjar-models", "explain", preset, *settings, "--against"]


def ask(results: NightResults, causes: Sequence[Cause], jobs: Sequence[Job], environments: Environments) -> bool:
    """Runs the first question of the night that was not asked before; False if there is none that can run here.

    The other release is installed outside of the job, whose sandbox has no network.
    """
    for cause in causes:
        words = find_question(cause, results)
        job = next((job for job in jobs if words is not None and job.cell == cause.verdicts[0].cell), None)
        if words is None or job is None or job.executor != "local":
            continue
        folder = results.folder / FOLDER / job.cell
        if folder.exists():
            continue
        try:
            other = environments.get(with_requirements(job.environment, words[-1])).interpreter
        except (EnvironmentFailedError, ValueError):  # ValueError: an image or a commit, whose packages stay
            continue
        if other is None:
            continue
        command = [*words[:-1], f"python={other.executable}", "--json"]
        run_job(
            replace(
                job,
                id=f"{job.cell}-explain",
                command=tuple(word.replace("{", "{{").replace("}", "}}") for word in command),
                env={**job.env, "NIGHTJAR_EXPLAINED": str(other.prefix)},  # so that its sandbox shows it
                timeout_s=LIMIT_S,
                adapter=None,
                measure=(),
            ),
            folder,
            environments,
        )
        return True
    return False


def read_answer(cause: Cause, results: NightResults) -> str | None:
    """The line that `ask` found; None if it was not asked, or got no answer."""
    words = find_question(cause, results)
    if words is None:
        return None
    text = read_line(results.folder, Path(FOLDER, cause.verdicts[0].cell, STDOUT))
    return text and f"{text} (against {words[-1]})"


def read_line(folder: Path, output: Path) -> str | None:
    """The first line of an answer that a job printed to a file below its folder; None if it has none."""
    try:
        answer = json.loads(read_untrusted(folder, output).decode().splitlines()[-1])
        text = "no operation differs" if answer is None else str(answer["text"]).splitlines()[0]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return text[:_MOST_CHARACTERS]
