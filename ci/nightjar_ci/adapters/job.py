"""Result of a job with an adapter, made from its files after it has completed.

In: a job, its outcome and its folder. Out: `result.json` in the folder.
"""

from __future__ import annotations

from pathlib import Path

from nightjar_ci.adapters.convert import About, adapt, find_files
from nightjar_ci.adapters.machine import OF_JAX, read_machine
from nightjar_ci.environments.current import Interpreter
from nightjar_ci.formats.adapter import Adapter
from nightjar_ci.formats.documents import write_json
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.run_record import Git
from nightjar_ci.untrusted.pattern_search import SEARCH_S


def adapt_job(
    outcome: Outcome,
    adapter: Adapter,
    folder: Path,
    git: Git | None,
    timeout_s: float,
    interpreter: Interpreter | None = None,
) -> None:
    """Writes the result of a job.

    Args:
        timeout_s: its timeout; also limits the search of a pattern.
        interpreter: the Python that it ran in; None for an image.
    """
    environment = read_machine(outcome.environment, git, interpreter, all_packages=True)
    local = {package.name for package in outcome.local_packages} - set(
        OF_JAX
    )  # no index has them: the commit says more
    packages = {name: version for name, version in environment.packages.items() if name not in local}
    about = About(
        job=outcome.job,
        workload=outcome.cell,
        seed=outcome.replicate or 0,
        started_at=outcome.started_at,
        duration_s=outcome.duration_s,
        environment=environment.model_copy(update={"packages": packages}),
    )
    files, search_s = find_files(folder, adapter), min(timeout_s, SEARCH_S)
    write_json(folder / "result.json", adapt(files, adapter, about, left_in=folder, search_s=search_s))
