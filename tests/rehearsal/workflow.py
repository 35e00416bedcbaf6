"""Which steps does a workflow run, in which order? Reads the YAML; called workflows and own actions are looked into.

In: a file of .github/workflows. Out: jobs in an order that `needs` allows, each with its steps. A job that calls a
workflow is a job with that workflow's jobs; a step that calls our own action stands for that action's steps.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

LOCAL = "./"
CALLED = "./.nightjar/action"  # where the workflow for other repositories checks ours out


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step as it is written: `run`, or `uses` of an action that is not ours."""

    name: str
    id: str | None = None
    condition: str | None = None
    run: str | None = None
    uses: str | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    continue_on_error: bool = False
    action_inputs: Mapping[str, Any] | None = None  # where it is a step of our own action


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job, or (with `calls`) another workflow with its inputs as they are written."""

    name: str
    needs: tuple[str, ...] = ()
    condition: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    calls: Path | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    matrix: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """A workflow: its jobs in an order that `needs` allows, and the defaults of its inputs."""

    path: Path
    jobs: tuple[Job, ...]
    env: Mapping[str, str]
    defaults: Mapping[str, Any]


def read_workflow(path: Path, root: Path) -> Workflow:
    document = yaml.safe_load(path.read_text())
    triggers = document.get("on", document.get(True)) or {}  # YAML 1.1 reads `on` as true
    called = triggers.get("workflow_call") if isinstance(triggers, Mapping) else None
    inputs = (called or {}).get("inputs") or {}
    ours = path.parents[2]  # of a workflow of ours
    jobs = [_read_job(name, job, root, ours) for name, job in document["jobs"].items()]
    return Workflow(
        path=path,
        jobs=tuple(_in_order(jobs)),
        env=document.get("env") or {},
        defaults={name: one.get("default", "") for name, one in inputs.items()},
    )


def _read_job(name: str, job: Mapping[str, Any], root: Path, ours: Path) -> Job:
    needs = job.get("needs") or ()
    return Job(
        name=name,
        needs=(needs,) if isinstance(needs, str) else tuple(needs),
        condition=_condition(job),
        env=job.get("env") or {},
        steps=tuple(step for written in job.get("steps", ()) for step in _read_steps(written, root, ours)),
        calls=root / job["uses"] if "uses" in job else None,
        inputs=job.get("with") or {},
        matrix=(job.get("strategy") or {}).get("matrix") or {},
    )


def _read_steps(written: Mapping[str, Any], root: Path, ours: Path) -> Iterator[Step]:
    uses = written.get("uses")
    if uses is None or not uses.startswith(LOCAL):
        yield _read_step(written, None)
        return
    folder = ours if uses == CALLED else root / uses
    action = yaml.safe_load((folder / "action.yml").read_text())
    defaults = {name: one.get("default", "") for name, one in (action.get("inputs") or {}).items()}
    for inner in action["runs"]["steps"]:
        yield _read_step(inner, {**defaults, **(written.get("with") or {})})


def _read_step(written: Mapping[str, Any], action_inputs: Mapping[str, Any] | None) -> Step:
    uses = written.get("uses")
    return Step(
        name=written.get("name") or (uses or "").partition("@")[0] or written["run"].splitlines()[0],
        id=written.get("id"),
        condition=_condition(written),
        run=written.get("run"),
        uses=None if uses is None else uses.partition("@")[0],
        given=written.get("with") or {},
        env=written.get("env") or {},
        continue_on_error=bool(written.get("continue-on-error", False)),
        action_inputs=action_inputs,
    )


def _condition(written: Mapping[str, Any]) -> str | None:
    """The text of `if:` without its braces; YAML may have read it as a truth."""
    if "if" not in written:
        return None
    text = str(written["if"]).strip()
    return text.removeprefix("${{").removesuffix("}}").strip() if text.startswith("${{") else text


def _in_order(jobs: list[Job]) -> Iterator[Job]:
    """Jobs after those that they need, else as they stand."""
    waiting, done = list(jobs), set[str]()
    while waiting:
        ready = next((job for job in waiting if done.issuperset(job.needs)), None)
        if ready is None:
            raise ValueError(f"jobs need each other: {', '.join(job.name for job in waiting)}")
        waiting.remove(ready)
        done.add(ready.name)
        yield ready
