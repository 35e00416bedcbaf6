"""A recorder in every Python process of a job: a folder that comes first on its PYTHONPATH.

In: a job and the file of a recorder, which has a function `start`. Out: the job with the variables that start it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from nightjar_ci.formats.job import Job
from nightjar_ci.formats.placeholders import escape


def with_recorder(job: Job, on_path: str, environ: Mapping[str, str], variables: Mapping[str, str]) -> Job:
    """A job whose Python processes find a recorder first, before its PYTHONPATH.

    Args:
        on_path: the folder of the recorder, a template as the job's own variables are.
        environ: the caller's variables, for the PYTHONPATH that the job would inherit.
    """
    inherited = escape(environ.get("PYTHONPATH", ""))
    path = os.pathsep.join(filter(None, (on_path, job.env.get("PYTHONPATH", inherited))))
    return replace(job, env={**job.env, "PYTHONPATH": path, **variables})


def write_recorder(on_path: Path, recorder: Path) -> None:
    on_path.mkdir(parents=True)
    shutil.copyfile(Path(__file__).with_name("sitecustomize.py"), on_path / "sitecustomize.py")
    shutil.copyfile(recorder, on_path / "nightjar_recorder.py")
