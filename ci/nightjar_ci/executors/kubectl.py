"""Executor for Kubernetes: creates the JobSet of a job, waits for its end and brings its folder home.

All through kubectl, which has the login and the cluster's address. Every run has a name of its own, so that a second
night is a second run. The job writes to the shared volume; when it has ended, a pod that mounts the same volume hands
its folder over as an archive, and removes it there. A pod has one log: `stdout.log` holds both streams.

Source: the conditions of a JobSet (jobset.sigs.k8s.io, concepts); the states of a container (kubernetes.io, pod
lifecycle).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import errno
import json
import secrets
import shutil
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any

from nightjar_ci.environments.prepare import PreparedEnvironment
from nightjar_ci.errors import ExecutorError, InputError, NightjarError
from nightjar_ci.executors.base import OnLine, Task, run_alone
from nightjar_ci.executors.ending import decode_shell_exit, judge_end, not_started
from nightjar_ci.executors.kubernetes import (
    ABORTED,
    CLOUDS,
    VOLUME,
    Fabric,
    Manifest,
    name_object,
    patch_jobset,
    render_jobset,
)
from nightjar_ci.executors.process import STDERR, STDOUT, Ended
from nightjar_ci.formats.documents import read_toml
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_folder import now
from nightjar_ci.formats.outcome import Outcome, make_outcome
from nightjar_ci.formats.placeholders import escape
from nightjar_ci.images.publish.verify import find_signer, pin_signed
from nightjar_ci.settings import read_settings
from nightjar_ci.untrusted.files import create_untrusted

_AT_ONCE = 100  # JobSets that are watched at once; the cluster decides which of them run
_POLL_S = 5.0
_PATIENCE = 120  # polls
_STUCK_POLLS = 12  # a minute: a registry that fails once is asked again
_STARTING = ("ContainerCreating", "PodInitializing", "Unschedulable", "SchedulingGated")  # all else wants a person
_COLLECT_S = 600  # for the pod that hands the folder over: it may wait for a node
_ANSWER_S = 120
_TIMED_OUT = (124, 137)  # of `timeout`: the command ended by SIGTERM, or by SIGKILL a minute later


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster's volume and settings, from `NIGHTJAR_KUBERNETES_OPTIONS`."""

    claim: str
    cloud: str | None
    patch: Path | None

    def render(self, job: Job, out: PurePosixPath | None = None, name: str | None = None) -> Manifest:
        fabric = CLOUDS[self.cloud] if self.cloud is not None else Fabric()
        manifest = render_jobset(job, claim=self.claim, out=out, fabric=fabric, name=name)
        if self.patch is None:
            return manifest
        return patch_jobset(manifest, read_toml(self.patch), str(self.patch))


def read_site(options: Sequence[str]) -> Site:
    """The site that options describe."""
    parser = argparse.ArgumentParser(prog="NIGHTJAR_KUBERNETES_OPTIONS", add_help=False, exit_on_error=False)
    parser.add_argument("--claim", default="nightjar-nights")
    parser.add_argument("--cloud", choices=tuple(CLOUDS))
    parser.add_argument("--patch", type=Path)
    try:
        known, unknown = parser.parse_known_args(options)
    except argparse.ArgumentError as error:
        raise InputError(f"NIGHTJAR_KUBERNETES_OPTIONS: {error}.") from None
    if unknown:
        hint = "expected --claim NAME, --cloud CLOUD or --patch FILE"
        raise InputError(f"NIGHTJAR_KUBERNETES_OPTIONS: {' '.join(unknown)!r} is unknown.", hint)
    return Site(**vars(known))


@dataclass(frozen=True, slots=True)
class KubernetesExecutor:
    """Runs jobs as JobSets of the cluster that kubectl is logged in to."""

    kinds: frozenset[str] = frozenset({"image"})
    runs_several_tasks: bool = True
    pins_cpus: bool = False

    def run(self, job: Job, environment: PreparedEnvironment, folder: Path, on_line: OnLine | None = None) -> Outcome:
        return run_alone(self, Task(job, environment, folder, on_line))

    def under_way(self, folder: Path) -> bool:
        return False  # an interrupted night deletes its JobSets

    def run_many(
        self, tasks: Sequence[Task], on_end: Callable[[Task, Outcome], None], stop: threading.Event | None = None
    ) -> None:
        stop, site = stop or threading.Event(), read_site(read_settings().kubernetes_options)
        with ThreadPoolExecutor(min(len(tasks), _AT_ONCE)) as pool:
            runs = {pool.submit(_Run(task, site, stop).run): task for task in tasks}
            for done in as_completed(runs):
                try:
                    outcome = done.result()
                except Exception as error:  # one job must not end the others
                    job = runs[done].job
                    message = f"{job.id}: {type(error).__name__}: {error}. Hint: this is a bug in nightjar-ci"
                    outcome = make_outcome(job, state="killed", started_at=now(), message=message)
                if outcome is not None:
                    on_end(runs[done], outcome)


class _Run:
    """One job, from its JobSet to its outcome."""

    def __init__(self, task: Task, site: Site, stop: threading.Event) -> None:
        self._task, self._site, self._stop = task, site, stop
        self._name = f"{name_object(task.job.id)[:33].rstrip('-')}-{secrets.token_hex(3)}"
        self._out = VOLUME / self._name
        self._selector = f"--selector=jobset.sigs.k8s.io/jobset-name={self._name}"
        self._started_at, self._stuck_polls, self._has_ended = now(), 0, False

    def run(self) -> Outcome | None:
        """The outcome; None if the night was interrupted, after the JobSet is deleted."""
        job, command = self._task.job, self._task.job.rendered(self._out)[0]
        try:
            self._kubectl("create", "-f", "-", given=json.dumps(self._manifest))
        except NightjarError as error:
            return not_started(job, error.message, error.hint, self._started_at, command)
        try:
            problem = self._wait()
            if self._stop.is_set():
                return None
            if problem is not None:
                return not_started(job, problem, None, self._started_at, command)
            self._collect()
            return self._judge(command)
        except ExecutorError as error:
            if self._stop.is_set():
                return None
            message = f"{job.id}: {error.message} JobSet: {self._name}. Hint: {error.hint}"
            return make_outcome(job, state="killed", started_at=self._started_at, command=command, message=message)
        finally:
            if not self._has_ended:
                with contextlib.suppress(ExecutorError):
                    self._kubectl("delete", "jobset", self._name, "--wait=false")

    @cached_property
    def _manifest(self) -> Manifest:
        image, signer = self._task.environment.image or "", find_signer()
        if signer is not None:
            image = pin_signed(image, signer)
        job, variables = self._task.job, self._task.environment.variables
        # a rung of a bisection has another image than its job, and variables
        env = {**{name: escape(value) for name, value in variables.items()}, **job.env}
        return self._site.render(replace(job, environment=f"image:{image}", env=env), self._out, self._name)

    @cached_property
    def _namespace(self) -> tuple[str, ...]:
        name = self._manifest["metadata"].get("namespace")
        return () if name is None else (f"--namespace={name}",)

    def _wait(self) -> str | None:
        """Waits for the end of the JobSet; returns why it never starts."""
        while not self._stop.is_set():
            conditions = self._get("jobset", self._name).get("status", {}).get("conditions", ())
            if any(one["type"] in ("Completed", "Failed") and one["status"] == "True" for one in conditions):
                self._has_ended = True
                return None
            waiting = [why for pod in self._pods() for why in _list_waiting(pod)]
            stuck = [f"{reason}: {message}" for reason, message in waiting if reason not in _STARTING]
            self._stuck_polls = self._stuck_polls + 1 if stuck else 0
            if self._stuck_polls >= _STUCK_POLLS:
                return stuck[0]
            if self._task.on_line is not None:
                self._task.on_line(self._say_state(waiting))
            self._stop.wait(_POLL_S)
        return None

    def _say_state(self, waiting: Sequence[tuple[str, str]]) -> str:
        if waiting:
            return ": ".join(filter(None, waiting[0]))
        with contextlib.suppress(ExecutorError):
            return self._kubectl("logs", *self._first_pod, "--tail=1").strip()
        return "waiting for a node"

    @property
    def _first_pod(self) -> tuple[str, ...]:
        return ("--container=job", f"{self._selector},batch.kubernetes.io/job-completion-index=0")

    def _pods(self) -> list[Manifest]:
        return list(self._get("pods", self._selector)["items"])

    def _collect(self) -> None:
        """Brings the logs and the job's folder home. An earlier run's files cannot be among them."""
        folder, pod, out = self._task.folder, f"{self._name}-out", str(self._out)
        with (
            create_untrusted(folder, STDERR),
            create_untrusted(folder, STDOUT) as log,
            contextlib.suppress(ExecutorError),
        ):
            # Without them the job's folder still comes home.
            self._stream(("logs", *self._first_pod, "--tail=-1"), lambda output: shutil.copyfileobj(output, log))
        self._kubectl("create", "-f", "-", given=json.dumps(_render_collector(self._manifest, pod)))
        try:
            self._kubectl("wait", f"pod/{pod}", "--for=condition=Ready", f"--timeout={_COLLECT_S}s")
            self._stream(("exec", pod, "--", "tar", "-C", out, "-cf", "-", "."), lambda output: _unpack(output, folder))
            self._kubectl("exec", pod, "--", "rm", "-rf", out)
        finally:
            with contextlib.suppress(ExecutorError):
                self._kubectl("delete", "pod", pod, "--wait=false")

    def _judge(self, command: tuple[str, ...]) -> Outcome:
        """The outcome by the container that ended first with an error of its own, else by the last."""
        job = self._task.job
        ends = sorted(filter(None, map(_end_of, self._pods())), key=lambda end: str(end["finishedAt"]))
        own = [end for end in ends if end["exitCode"] not in (0, ABORTED)]
        if not ends:
            message = f"{job.id}: the pods of JobSet {self._name} are gone: their nodes were lost on every attempt."
            return make_outcome(job, state="killed", started_at=self._started_at, command=command, message=message)
        end = own[0] if own else ends[-1]
        code, started_at, duration_s = int(end["exitCode"]), end.get("startedAt") or self._started_at, 0.0
        if end.get("startedAt") and end.get("finishedAt"):  # not of a pod that was evicted, or whose node is gone
            duration_s = (
                datetime.fromisoformat(end["finishedAt"]) - datetime.fromisoformat(started_at)
            ).total_seconds()
        timed_out = code in _TIMED_OUT and duration_s >= job.timeout_s and end.get("reason") != "OOMKilled"
        ended = Ended(exit_code=None if timed_out else code, duration_s=duration_s, timed_out=timed_out)
        return judge_end(job, decode_shell_exit(ended), command, self._task.folder, started_at)

    def _get(self, *what: str, failures: int = 0) -> Any:
        """The state of objects; a server that does not answer is asked again for ten minutes: the job goes on."""
        try:
            return json.loads(self._kubectl("get", *what, "--output=json"))
        except ExecutorError:
            if failures >= _PATIENCE or self._stop.wait(_POLL_S):
                raise
        return self._get(*what, failures=failures + 1)

    def _kubectl(self, verb: str, *arguments: str, given: str = "") -> str:
        command = ("kubectl", verb, *self._namespace, *arguments)
        limit_s = _COLLECT_S + _ANSWER_S if verb == "wait" else _ANSWER_S
        try:
            done = subprocess.run(
                command, input=given, capture_output=True, text=True, errors="replace", check=False, timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            raise _no_answer(command, f"no answer within {limit_s} s") from None
        except OSError:
            raise ExecutorError("no kubectl command on PATH.", "install kubectl, and log in to the cluster") from None
        if done.returncode != 0:
            raise _no_answer(command, done.stderr.strip())
        return done.stdout

    def _stream(self, arguments: Sequence[str], read: Callable[[IO[bytes]], None]) -> None:
        command = ("kubectl", arguments[0], *self._namespace, *arguments[1:])
        with tempfile.TemporaryFile() as errors:
            failed = None
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:
                assert process.stdout is not None
                try:
                    read(process.stdout)
                except (tarfile.TarError, OSError) as error:
                    failed = error
            errors.seek(0)
            problem = errors.read().decode(errors="replace").strip()
        if process.returncode != 0 or failed:
            raise _no_answer(command, f"{failed or ''} {problem}".strip())


def _no_answer(command: Sequence[str], problem: str) -> ExecutorError:
    return ExecutorError(
        f"`{' '.join(command)}`: {problem}.", "see `kubectl get events`, and `kubectl auth can-i --list`"
    )


def _list_waiting(pod: Manifest) -> list[tuple[str, str]]:
    """The reason and the message of each container that waits, and of a pod without a node."""
    status = pod.get("status", {})
    containers = (*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ()))
    states = [one.get("state", {}).get("waiting") for one in containers]
    states += [one for one in status.get("conditions", ()) if one.get("reason") == "Unschedulable"]
    return [(str(one.get("reason", "")), str(one.get("message", ""))) for one in states if one]


def _end_of(pod: Manifest) -> dict[str, Any] | None:
    statuses = pod.get("status", {}).get("containerStatuses", ())
    ends = [one.get("state", {}).get("terminated") for one in statuses if one["name"] == "job"]
    return ends[0] if ends else None


def _render_collector(manifest: Manifest, name: str) -> Manifest:
    """A pod with the job's image, user and volume, and nothing that binds it to a node with GPUs."""
    template = copy.deepcopy(manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"])
    spec = template["spec"]
    for bound in ("initContainers", "nodeSelector", "hostNetwork", "dnsPolicy"):  # a toleration binds it to none
        spec.pop(bound, None)
    container, mounted = spec["containers"][0], "nights"
    spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] == mounted]
    spec["containers"] = [
        {
            **{key: container[key] for key in ("name", "image", "securityContext") if key in container},
            "command": ["sleep", str(2 * _COLLECT_S)],
            "volumeMounts": [mount for mount in container["volumeMounts"] if mount["name"] == mounted],
        }
    ]
    spec["automountServiceAccountToken"] = False  # a job's folder may be a link to anything in this pod
    metadata = {"name": name, "labels": template["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _unpack(archive: IO[bytes], folder: Path) -> None:
    """Files and folders of an archive that a job made, not links and devices; a tenth of the disk stays free."""
    room_bytes = shutil.disk_usage(folder).free * 9 // 10
    with tarfile.open(fileobj=archive, mode="r|") as members:
        for member in members:
            path = PurePosixPath(member.name)
            room_bytes -= member.size + 4096  # a file without content takes a block, too
            if room_bytes < 0:
                raise OSError(errno.ENOSPC, f"{member.name} does not fit on this disk")
            if path.is_absolute() or ".." in path.parts or member.name.removeprefix("./") in (STDOUT, STDERR):
                continue
            if member.isdir():
                (folder / path).mkdir(parents=True, exist_ok=True)
            elif member.isfile() and (content := members.extractfile(member)) is not None:
                with create_untrusted(folder / path.parent, path.name) as file:
                    shutil.copyfileobj(content, file)
