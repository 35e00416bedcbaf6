"""Jobs that a thread runs through the Slurm executor while a test changes the cluster."""

import json
import threading
from pathlib import Path
from typing import Any

from nightjar_ci.executors import Task
from nightjar_ci.executors.slurm.executor import SlurmExecutor
from nightjar_ci.executors.slurm.slurm_job import STATE_FILE
from nightjar_ci.formats.outcome import Outcome
from tests.ci.jobs import HERE, make_job, wait_for

# Counts to twelve, a quarter of a second each, from where the last attempt came to.
COUNT = """
import os, pathlib, time
out = pathlib.Path(os.environ["NIGHTJAR_OUT"])
mark, log = out / "checkpoint", out / "log"
at = int(mark.read_text()) if mark.exists() else 0
with log.open("a") as file:
    file.write(os.environ["SLURMD_NODENAME"] + " from " + str(at) + chr(10))
while at < 12:
    time.sleep(0.25)
    at += 1
    (out / "new").write_text(str(at))
    (out / "new").rename(mark)
"""


class Running:
    def __init__(self, folder: Path, *command: str, **changes: Any) -> None:
        self.folder, self.lines = folder, list[str]()
        folder.mkdir(exist_ok=True)
        self._outcomes: list[Outcome] = []
        self._stop = threading.Event()
        task = Task(make_job(*command, executor="slurm", **changes), HERE, folder, self.lines.append)
        self._thread = threading.Thread(
            target=lambda: SlurmExecutor().run_many([task], lambda _, end: self._outcomes.append(end), self._stop),
            daemon=True,
        )
        self._thread.start()

    def until(self, name: str) -> str:
        wait_for(lambda: (self.folder / name).exists() and (self.folder / name).read_text())
        return (self.folder / name).read_text()

    @property
    def ended(self) -> bool:
        return bool(self._outcomes)

    def outcome(self, seconds: float = 120) -> Outcome:
        self._thread.join(seconds)
        assert self._outcomes, "the job has not ended"
        return self._outcomes[0]

    def stop(self) -> list[Outcome]:
        self._stop.set()
        self._thread.join(60)
        return self._outcomes

    @property
    def slurm_id(self) -> str:
        return str(json.loads(self.until(STATE_FILE))["id"])


def run(folder: Path, *command: str, **changes: Any) -> Outcome:
    return Running(folder, *command, **changes).outcome()
