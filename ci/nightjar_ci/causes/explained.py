"""The first line that computes other numbers, behind a red curve: `nightjar-models explain`, run as a job of the night.

In: the causes of a night, its jobs, and the environments of the cells in its last good night. Out: the folder
`<night>/explain/<cell>`, whose output opens the cause's card. The other side is the last good night's packages and
commit, made again; or the instruction set that XLA used then.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from nightjar_ci.causes.causes import Cause
from nightjar_ci.environments.prepare import Environments
from nightjar_ci.errors import EnvironmentFailedError, InputError
from nightjar_ci.executors.process import STDOUT
from nightjar_ci.formats.documents import read_document
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_results import NightResults
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.run_record import Environment
from nightjar_ci.gate.reruns import EnvironmentOf, HasCommit, find_reference
from nightjar_ci.night.run_job import run_job
from nightjar_ci.untrusted.files import read_untrusted

FOLDER = "explain"
LIMIT_S = 300.0  # one run a night
AGAINST = "NIGHTJAR_AGAINST"  # the job's variable that names the other side, for its card
_DECIDING = ("jax", "jaxlib", "flax")  # of a preset's numbers; its own package is in a commit
# Instruction sets as --xla_cpu_max_isa spells them, weakest first, and as /proc/cpuinfo does.
_ISAS = {
    "SSE4_2": "sse4_2",
    "AVX": "avx",
    "AVX2": "avx2",
    "AVX512": "avx512f",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AMX": "amx_bf16",
    "AMX_FP16": "amx_fp16",
}
_MOST_CHARACTERS = 300


def find_others(
    environment: str, then: Environment, tonight: Environment, has_commit: HasCommit
) -> Iterator[tuple[str, str | None]]:
    """The sides that may be compared with, in words, and their environments, if they have one of their own."""
    changed = [
        f"{name}=={then.packages[name]}"
        for name in _DECIDING
        if name in then.packages and tonight.packages.get(name) not in (None, then.packages[name])
    ]
    reference, _ = find_reference(environment, then, tonight, has_commit)
    if reference is not None and reference.startswith("commit:"):
        changed.append(f"commit {reference[7:19]}")
    if reference is not None and changed:
        yield ", ".join(changed), reference
    if (isa := find_isa(then, tonight)) is not None:
        yield f"isa={isa}", None


def find_isa(then: Environment, tonight: Environment) -> str | None:
    """The instruction set that XLA used then, if it uses another one tonight and this processor has that one, too."""
    names, used = list[str](), list[str]()
    for environment in (then, tonight):
        names = [name for name, word in _ISAS.items() if word in (environment.cpu.instructions or ())]
        used += [name for name in names if name == environment.isa_limit] or names[-1:]
    return used[0] if len(used) == 2 and used[0] != used[1] and used[0] in names else None


def render_question(command: Sequence[str]) -> list[str] | None:
    """The command that compares a preset with itself in another environment, whose name is to follow.

    Variables that `env` sets before the training are set for it, too.

    >>> render_question(["nightjar-models", "train", "gpt_tiny", "--set", "model.layers=1", "--out", "here"])
    ['nightjar-models', 'explain', 'gpt_tiny', '--set', 'model.layers=1', '--against']
    >>> render_question(["env", "JAX_PLATFORMS=cpu", "nightjar-models", "train", "gpt_tiny"])
    ['env', 'JAX_PLATFORMS=cpu', 'nightjar-models', 'explain', 'gpt_tiny', '--against']
    """
    start = next((at for at, word in enumerate(command) if word != "env" and "=" not in word), 0)
    if list(command[start : start + 2]) != ["nightjar-models", "train"]:
        return None
    preset, *options = command[start + 2 :]
    settings = [word for option, value in pairwise(options) if option == "--set" for word in (option, value)]
    return [*command[:start], "nightjar-models", "explain", preset, *settings, "--against"]


def ask(
    results: NightResults,
    causes: Sequence[Cause],
    jobs: Sequence[Job],
    environments: Environments,
    environment_of: EnvironmentOf,
    has_commit: HasCommit,
) -> bool:
    """Runs the first question of the night that was not asked before; False if there is none that can run here.

    The other environment is made outside of the job, whose sandbox has no network.

    Args:
        environment_of: the recorded environment of a cell in a night.
    """
    for cause in causes:
        if not _is_of_numbers(cause) or cause.good is None:
            continue
        cell = cause.verdicts[0].cell
        job = next((job for job in jobs if job.cell == cell), None)
        outcome = next((outcome for outcome in results.night.jobs if outcome.cell == cell), None)
        words = outcome and render_question(outcome.command)
        folder = results.folder / FOLDER / cell
        then, tonight = (environment_of(cell, night) for night in (cause.good, results.night.id))
        if not words or job is None or job.executor != "local" or folder.exists() or then is None or tonight is None:
            continue
        others = find_others(job.environment, then, tonight, has_commit)
        side = next(filter(None, (_name_side(job, *other, environments) for other in others)), None)
        if side is None:
            continue
        against, variables = side
        run_job(
            replace(
                job,
                id=f"{cell}-explain",
                command=tuple(word.replace("{", "{{").replace("}", "}}") for word in (*words, against, "--json")),
                env={**job.env, **variables},
                timeout_s=LIMIT_S,
                adapter=None,
                measure=(),
            ),
            folder,
            environments,
        )
        return True
    return False


def _is_of_numbers(cause: Cause) -> bool:
    return cause.kind == "regressed" and cause.verdicts[0].judge == "convergence"


def _name_side(
    job: Job, name: str, reference: str | None, environments: Environments
) -> tuple[str, dict[str, str]] | None:
    """The other side as `--against` takes it, and the job's variables; None if it cannot be made, or is this one."""
    variables = {AGAINST: name}
    if reference is None:
        return name, variables
    try:
        own, other = environments.get(job.environment), environments.get(reference)
    except (EnvironmentFailedError, ValueError):  # ValueError: packages of an image or a commit stay
        return None
    if other.interpreter is None or own.interpreter == other.interpreter:
        return None
    variables["NIGHTJAR_EXPLAINED"] = str(other.interpreter.prefix)  # the job's sandbox shows what a variable names
    if other.folder is not None:
        variables["NIGHTJAR_EXPLAINED_COMMIT"] = str(other.folder)
    return f"python={other.interpreter.executable}", variables


def read_answer(cause: Cause, results: NightResults) -> str | None:
    """The line that `ask` found; None if it was not asked, or got no answer."""
    if not _is_of_numbers(cause):
        return None
    folder = Path(FOLDER, cause.verdicts[0].cell)
    text = read_line(results.folder, folder / STDOUT)
    try:
        against = read_document(results.folder / folder / "outcome.json", Outcome).env[AGAINST]
    except (InputError, KeyError):
        return None
    other = "another instruction set, " if against.startswith("isa=") else ""
    return text and f"{text} (against {other}{against})"


def read_line(folder: Path, output: Path) -> str | None:
    """The first line of an answer that a job printed to a file below its folder; None if it has none."""
    try:
        answer = json.loads(read_untrusted(folder, output).decode().splitlines()[-1])
        text = "no operation differs" if answer is None else str(answer["text"]).splitlines()[0]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return text[:_MOST_CHARACTERS]
