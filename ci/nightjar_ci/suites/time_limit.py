"""The time limit of a suite: tests beyond it are skipped, and tests that ran count.

In: a job of kind `test` whose matrix names a limit. Out: the job with a plugin of pytest, which travels in
`PYTEST_ADDOPTS`, so that the command stays as the user wrote it. A suite that is killed at its timeout reports nothing;
one that stops by itself reports all its results.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nightjar_ci.counters.on_path import with_recorder
from nightjar_ci.formats.job import Job
from nightjar_ci.suites.command import find_pytest, with_options

_ON_PATH = "time-limit"  # in the job's folder
_PLUGIN = Path(__file__).with_name("time_limit_plugin.py")


def with_time_limit(job: Job, folder: Path) -> Job:
    """The job, made to start no test after its limit, if its matrix has one and it runs pytest.

    Args:
        folder: the job's, which gets the plugin.
    """
    if job.tests is None or job.tests.limit_s is None or find_pytest(job.command) is None:
        return job
    (folder / _ON_PATH).mkdir(parents=True)
    shutil.copyfile(_PLUGIN, folder / _ON_PATH / "nightjar_time_limit.py")
    limited = with_options(job, ["-p nightjar_time_limit"])
    return with_recorder(limited, f"{{out}}/{_ON_PATH}", os.environ, {"NIGHTJAR_LIMIT_S": f"{job.tests.limit_s:g}"})
