"""How does a workflow go on this machine? Every step's command in a shell, in order, with GitHub's rules for `if`.

In: a workflow, contexts, stand-ins. Out: a `Done` for each step. A failed step fails its job unless it may fail; later
steps run only where their condition says so; a failed job skips those that need it, unless their condition says so.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

from tests.rehearsal.expressions import evaluate, fill, show
from tests.rehearsal.stand_ins import StandIns
from tests.rehearsal.workflow import Job, Step, Workflow, read_workflow

Result = Literal["success", "failure", "skipped"]
_STATUS_FUNCTIONS = ("success()", "failure()", "always()", "cancelled()")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What became of a step: how it ended, with which exit status, and the command or what stood for the action."""

    job: str
    step: str
    outcome: Result
    said: str
    status: int | None
    duration_s: float
    may_fail: bool = False


class Runner:
    def __init__(
        self,
        checkout: Path,
        stand_ins: StandIns,
        contexts: Mapping[str, Any],
        shell: Callable[[str, Mapping[str, str]], int] | None = None,
    ) -> None:
        self.checkout, self.stand_ins, self.contexts = checkout, stand_ins, contexts
        self.shell = shell or self._run_in_shell
        self.done: list[Done] = []

    def run(self, workflow: Workflow, inputs: Mapping[str, Any] | None = None, prefix: str = "") -> Result:
        results: dict[str, Any] = {}
        contexts = {**self.contexts, "inputs": {**workflow.defaults, **(inputs or {})}, "needs": results}
        for job in workflow.jobs:
            needed = [results[name]["result"] for name in job.needs]
            if not self._wanted(job.condition, contexts, failed="failure" in needed, skipped="skipped" in needed):
                result: Result = "skipped"
                print(f"== {prefix}{job.name}: skipped", file=sys.stderr, flush=True)
            elif job.calls is not None:
                result = self._join(
                    self._call(job, job.calls, {**contexts, "matrix": part}, prefix)
                    for part in self._combine(job.matrix, contexts)
                )
            else:
                result = self._join(
                    self._run_job(job, workflow, {**contexts, "matrix": part}, f"{prefix}{job.name}")
                    for part in self._combine(job.matrix, contexts)
                )
            results[job.name] = {"result": result, "outputs": {}}
        return self._join(one["result"] for one in results.values())

    @staticmethod
    def _join(parts: Iterable[Result]) -> Result:
        return "failure" if "failure" in list(parts) else "success"

    def _call(self, job: Job, calls: Path, contexts: Mapping[str, Any], prefix: str) -> Result:
        given = {name: self._fill(value, contexts) for name, value in job.inputs.items()}
        return self.run(read_workflow(calls, self.checkout), given, f"{prefix}{job.name}/")

    def _combine(self, matrix: Mapping[str, Any], contexts: Mapping[str, Any]) -> list[dict[str, Any]]:
        axes = [json.loads(self._fill(values, contexts)) for values in matrix.values()]
        return [dict(zip(matrix, chosen, strict=True)) for chosen in product(*axes)]

    def _run_job(self, job: Job, workflow: Workflow, contexts: Mapping[str, Any], name: str) -> Result:
        env: dict[str, str] = {}
        for written in (workflow.env, job.env):
            env |= {key: self._fill(value, {**contexts, "env": env}) for key, value in written.items()}
        files = {key: self.stand_ins.artifacts.parent / key.lower() for key in ("GITHUB_ENV", "GITHUB_STEP_SUMMARY")}
        files["GITHUB_ENV"].write_text("")
        env |= {key: str(path) for key, path in files.items()}
        steps: dict[str, Any] = {}
        failed = False
        for step in job.steps:
            here = {**contexts, "env": env, "steps": steps}
            if step.action_inputs is not None:
                here["inputs"] = {key: self._fill(value, here) for key, value in step.action_inputs.items()}
            if not self._wanted(step.condition, here, failed=failed):
                done = Done(job=name, step=step.name, outcome="skipped", said="", status=None, duration_s=0.0)
            else:
                done = self._run_step(step, here, env, name)
            self.done.append(done)
            print(f"   {name}: {done.step}: {done.outcome}, {done.duration_s:.0f} s", file=sys.stderr, flush=True)
            lines = files["GITHUB_ENV"].read_text().splitlines()
            env |= dict(line.split("=", 1) for line in lines if "=" in line)
            forgiven: Result = "success" if step.continue_on_error and done.outcome == "failure" else done.outcome
            if step.id is not None:
                steps[step.id] = {"outcome": done.outcome, "conclusion": forgiven, "outputs": {}}
            failed = failed or forgiven == "failure"
        return "failure" if failed else "success"

    def _run_step(self, step: Step, contexts: Mapping[str, Any], env: Mapping[str, str], job: str) -> Done:
        start = time.monotonic()
        status: int | None = None
        if step.run is not None:
            said = self._fill(step.run, contexts)
            print(f"== {job}: {step.name}\n$ {said}", file=sys.stderr, flush=True)
            own = {key: self._fill(value, contexts) for key, value in step.env.items()}
            status = self.shell(said, {**env, **own})
            outcome: Result = "success" if status == 0 else "failure"
        else:
            try:
                given = {key: self._fill(value, contexts) for key, value in step.given.items()}
                said = self.stand_ins.act(str(step.uses), given)
                outcome = "success"
            except FileNotFoundError as error:
                said, outcome = str(error), "failure"
            said = f"{step.uses}: {said}"
        duration_s = time.monotonic() - start
        return Done(
            job=job,
            step=step.name,
            outcome=outcome,
            said=said,
            status=status,
            duration_s=duration_s,
            may_fail=step.continue_on_error,
        )

    def _run_in_shell(self, command: str, env: Mapping[str, str]) -> int:
        """As GitHub runs a step: bash, and the first failure ends it; a variable without a value is set, and empty."""
        variables = {**os.environ, **env}
        return subprocess.run(["bash", "-e", "-c", command], cwd=self.checkout, env=variables, check=False).returncode

    def _wanted(
        self, condition: str | None, contexts: Mapping[str, Any], *, failed: bool, skipped: bool = False
    ) -> bool:
        """Whether a step or job runs: `success()` is meant where the condition names no other."""
        well = not failed and not skipped
        functions = {
            "success": lambda: well,
            "failure": lambda: failed,
            "always": lambda: True,
            "cancelled": lambda: False,
        }
        if condition is None:
            return well
        value = bool(evaluate(condition, contexts, functions))
        return value if any(name in condition for name in _STATUS_FUNCTIONS) else value and well

    def _fill(self, value: Any, contexts: Mapping[str, Any]) -> str:
        return fill(show(value), contexts, {"hashFiles": lambda *patterns: "0" * 64})
