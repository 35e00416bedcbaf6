"""Executor for containers: renders `docker run` (pure) and runs it like any other command.

The job's folder is mounted as `/out`, and the caller owns the results. The container has no network unless
`NIGHTJAR_DOCKER_NETWORK` names one: a workload that downloads is not a measurement. It inherits only the variables that
the matrix names (`pass_env`, `secrets`); docker gets their values in its own environment. It has no capabilities and
cannot get any; `NIGHTJAR_DOCKER_OPTIONS` adds options that a job needs.

Source: proc(5), for its memory.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from nightjar_ci.environments.prepare import PreparedEnvironment
from nightjar_ci.errors import ExecutorError, NightjarError
from nightjar_ci.executors.base import OnLine
from nightjar_ci.executors.ending import decode_shell_exit, judge_end, not_started
from nightjar_ci.executors.process import STDERR, Ended, UnwritableLogError, read_tail, run_process
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_folder import now
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.resources import Resources
from nightjar_ci.images.publish.sign import Signer
from nightjar_ci.images.publish.verify import find_signer, pin_signed
from nightjar_ci.settings import read_settings
from nightjar_ci.untrusted.inheritance import select
from nightjar_ci.untrusted.masking import make_mask

OUT = PurePosixPath("/out")
WORK = PurePosixPath("/work")
_DAEMON_FAILED, _CANNOT_RUN, _NOT_FOUND = 125, 126, 127  # docs.docker.com/reference/cli/docker/container/run
_COMMAND_TIMEOUT_S = 60
_SHM_WITH_GPUS = "8G"  # a limit, not a reservation; with docker's 64 MB, NCCL and data loaders die of SIGBUS
_NO_RESOURCES = Resources()
_PULL_TIMEOUT_S = 3600
_MOST_PROCESSES = 32768  # processes and threads: XLA starts several for each core, a fork bomb any number


_INSPECT_EVERY_S, _POLL_EVERY_S = 0.5, 0.2


def render_docker_run(
    image: str,
    command: Sequence[str],
    *,
    name: str,
    folder: Path,
    user: str,
    variables: Mapping[str, str],
    passed: Iterable[str] = (),
    network: str = "none",
    resources: Resources = _NO_RESOURCES,
    options: Sequence[str] = (),
    work: Path | None = None,
) -> tuple[str, ...]:
    """The `docker run` command of a job.

    Args:
        name: container name, used to kill it at a timeout.
        folder: the job's folder on this machine, mounted as `/out`.
        user: `uid:gid` that will own the results.
        variables: environment variables inside the container; most are rendered by name only.
        passed: further variables, which docker reads from its own environment.
        work: a folder of this machine to mount read-only as `/work`, the working directory.
    """
    mount: tuple[str, ...] = ()
    if work is not None:
        mount = ("--mount", f"type=bind,source={work},target={WORK},readonly", "--workdir", str(WORK))
    return (
        *("docker", "run", "--rm", "--init", "--name", name, "--pull", "never"),
        *("--user", user, "--network", network, "--log-driver", "none"),  # the engine would keep a copy of all output
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", str(_MOST_PROCESSES)),
        *("--mount", f"type=bind,source={folder},target={OUT}"),
        *mount,
        *_render_resources(resources),
        *(part for key, value in sorted(variables.items()) for part in ("--env", _render_variable(key, value))),
        *(part for key in sorted(passed) if key not in variables for part in ("--env", key)),
        *options,
        *("--entrypoint", command[0], image, *command[1:]),
    )


def _render_resources(resources: Resources) -> tuple[str, ...]:
    """The options for limits and GPUs; a job with GPUs also gets the limits that NCCL and pinned host memory need."""
    gpus, shm = resources.gpus_per_node, resources.shm
    options: list[tuple[str, object]] = []
    if resources.memory is not None:
        options.append(("--memory", resources.memory.lower()))
    if resources.pinned_cpus:
        options.append(("--cpuset-cpus", resources.pinned_cpus))
    elif resources.cpus_per_task is not None:
        options.append(("--cpus", resources.cpus_per_task))
    if gpus:
        options.append(("--gpus", gpus))
        shm = shm or _SHM_WITH_GPUS
    if shm:
        options.append(("--shm-size", shm.lower()))
    if gpus:
        options += [("--ulimit", "memlock=-1"), ("--ulimit", "stack=67108864")]
    return tuple(part for option, value in options for part in (option, str(value)))


def _render_variable(key: str, value: str) -> str:
    """A variable by name, so that no log shows its value; the ones that docker itself reads carry their value."""
    if _is_read_by_docker(key):
        return f"{key}={value}"
    return key


def _is_read_by_docker(key: str) -> bool:
    return key in ("HOME", "PATH") or key.startswith("DOCKER_")


@dataclass(frozen=True, slots=True)
class DockerExecutor:
    """Runs jobs in containers, through the docker command."""

    kinds: frozenset[str] = frozenset({"image"})
    runs_several_tasks: bool = False
    pins_cpus: bool = True

    def run(self, job: Job, environment: PreparedEnvironment, folder: Path, on_line: OnLine | None = None) -> Outcome:
        """Runs a job to completion (see `Executor`); pulls the image if it is lacking."""
        started_at, settings = now(), read_settings()
        try:
            image = _provide(environment.image or "", find_signer())
        except NightjarError as error:
            return not_started(job, error.message, error.hint, started_at)
        work = None if environment.folder is None else environment.folder.absolute()
        if "," in f"{folder.absolute()}{work or ''}":
            return not_started(job, f"{folder}: docker cannot mount a path with a comma.", None, started_at)
        inside, job_variables = job.rendered(OUT)
        variables = {"NIGHTJAR_IMAGE": image, **environment.variables, **job_variables}
        variables.setdefault("HOME", "/tmp")  # the user has no home in the image
        name = f"nightjar-{job.id}-{secrets.token_hex(4)}"
        command = render_docker_run(
            image,
            inside,
            name=name,
            folder=folder.absolute(),
            user=f"{os.getuid()}:{os.getgid()}",
            variables=variables,
            passed=select(os.environ, job.inherited),
            network=settings.docker_network,
            resources=job.resources,
            options=settings.docker_options,
            work=work,
        )
        environ = {**os.environ, **{key: value for key, value in variables.items() if not _is_read_by_docker(key)}}
        started_at, memory = now(), ContainerMemory(name)
        try:
            ended = run_process(
                command,
                environ,
                folder,
                job.timeout_s,
                on_line,
                on_end=lambda: _kill(name),
                outside=("docker", "kill", name),
                on_poll=memory.poll,
                mask=make_mask(job.secrets, os.environ),
            )
        except UnwritableLogError:
            raise
        except (OSError, ValueError) as error:  # also a NUL in an argument
            return not_started(job, f"cannot run docker: {error}.", None, started_at, command)
        log = read_tail(folder / STDERR)
        if _was_not_started(ended, log):
            failure = f"docker could not start {inside[0]!r} in {image}: {log}"
            return not_started(job, failure, "check that the image has the command", started_at, command)
        ended = replace(decode_shell_exit(ended), peak_rss_bytes=memory.peak_rss_bytes)
        return judge_end(job, ended, command, folder, started_at)


def _provide(image: str, signer: Signer | None) -> str:
    """The reference of an image that docker has or pulls now; with a signer, a pulled one is signed."""
    if _has(image):
        return image
    if signer is not None:
        image = pin_signed(image, signer)
        if _has(image):
            return image
    pulled = _run_docker("pull", "--quiet", image, timeout_s=_PULL_TIMEOUT_S)
    if pulled.returncode != 0:
        raise ExecutorError(
            f"no local image {image!r}, and pulling it failed: {pulled.stderr.strip()}",
            "`nox -s images` builds Nightjar's own images",
        )
    return image


def _has(image: str) -> bool:
    inspected = _run_docker("image", "inspect", "--format", "{{.Id}}", image)
    if inspected.returncode != 0 and "No such image" not in inspected.stderr:
        raise ExecutorError(
            f"the Docker engine does not answer: {inspected.stderr.strip()}",
            "start the Docker engine, and check that `docker info` works for this user",
        )
    return inspected.returncode == 0


def _kill(name: str) -> None:
    with suppress(ExecutorError):
        _run_docker("kill", name)


def _run_docker(*arguments: str, timeout_s: float = _COMMAND_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
    command = ("docker", *arguments)
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=timeout_s, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        problem = f"`{' '.join(command)}` did not answer within {timeout_s:g} s"
        return subprocess.CompletedProcess(command, 1, "", problem)
    except OSError:
        raise ExecutorError("no docker command on PATH.", "install Docker, or use the executor 'local'") from None


def _was_not_started(ended: Ended, log: str) -> bool:
    if ended.timed_out:
        return False
    if ended.exit_code == _DAEMON_FAILED:
        return True
    return ended.exit_code in (_CANNOT_RUN, _NOT_FOUND) and (
        "Error response from daemon" in log or "[FATAL tini" in log
    )


class ContainerMemory:
    """Polls the processes of one container, at most every 0.2 s."""

    def __init__(self, name: str) -> None:
        self.peak_rss_bytes: int | None = None
        self._name, self._root_pid, self._next_poll = name, 0, 0.0

    def poll(self) -> None:
        """Reads the peaks, unless the last poll was too recent."""
        if time.monotonic() < self._next_poll:
            return
        if not self._root_pid:
            self._root_pid = self._find_root_pid()
        if self._root_pid:
            peak = max((_peak_of(pid) for pid in _descendants(self._root_pid)), default=0)
            if peak:
                self.peak_rss_bytes = max(peak, self.peak_rss_bytes or 0)
        self._next_poll = time.monotonic() + (_POLL_EVERY_S if self._root_pid else _INSPECT_EVERY_S)

    def _find_root_pid(self) -> int:
        """The container's first process on this machine; 0 if there is none (yet)."""
        command = ("docker", "inspect", "--format", "{{.State.Pid}} {{.Id}}", self._name)
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
            answer = subprocess.run(
                command, capture_output=True, text=True, check=True, timeout=10, stdin=subprocess.DEVNULL
            ).stdout
            pid, container = answer.split()
            if container in Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8"):
                return int(pid)
        return 0


def _descendants(root_pid: int) -> list[int]:
    pids = [root_pid]
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids += map(int, (task / "children").read_text(encoding="ascii").split())
    return pids


def _peak_of(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
