"""How does a job run in a container? `docker run` is rendered (pure), and run like any other command.

The job's folder is mounted as `/out`; results belong to the caller; the container has no network unless
`NIGHTJAR_DOCKER_NETWORK` names one, for a workload that downloads is no measurement. Of the caller's variables it has
those that the matrix names (`pass_env`, `secrets`) and no other; docker gets their values in its own environment.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from nightjar_ci.environments.prepare import PreparedEnvironment
from nightjar_ci.executors.base import OnLine
from nightjar_ci.executors.container_memory import ContainerMemory
from nightjar_ci.executors.ending import judge_end, not_started, seen_from_shell
from nightjar_ci.executors.process import STDERR, Ended, read_tail, run_process
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_folder import now
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.resources import Resources
from nightjar_ci.settings import read_settings
from nightjar_ci.untrusted.inheritance import select
from nightjar_ci.untrusted.masking import make_mask

OUT = PurePosixPath("/out")
WORK = PurePosixPath("/work")
_DAEMON_FAILED, _CANNOT_RUN, _NOT_FOUND = 125, 126, 127  # docs.docker.com/reference/cli/docker/container/run
_ASK_TIMEOUT_S = 60
_SHM_WITH_GPUS = "8G"  # a limit, not a reservation; docker's 64 MB end NCCL and data loaders with SIGBUS
_NOTHING_ASKED = Resources()
_PULL_TIMEOUT_S = 3600


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
    resources: Resources = _NOTHING_ASKED,
    options: Sequence[str] = (),
    work: Path | None = None,
) -> tuple[str, ...]:
    """The `docker run` of a job.

    Args:
        image: image reference.
        command: argument list inside the container.
        name: container name, by which it is killed at a timeout.
        folder: the job's folder on this machine, mounted as `/out`.
        user: `uid:gid` that the results will belong to.
        variables: environment variables inside the container; most are rendered by name alone.
        passed: further variables, which docker finds in its own environment.
        network: network of the container.
        resources: limits and GPUs.
        options: further options of `docker run`.
        work: a folder of this machine that is mounted read-only as `/work`, the working directory; none where None.
    """
    return (
        *("docker", "run", "--rm", "--init", "--name", name, "--pull", "never"),
        *("--user", user, "--network", network, "--log-driver", "none"),  # the engine would keep all of its output
        *("--mount", f"type=bind,source={folder},target={OUT}"),
        *(
            ()
            if work is None
            else ("--mount", f"type=bind,source={work},target={WORK},readonly", "--workdir", str(WORK))
        ),
        *_render_resources(resources),
        *(part for key, value in sorted(variables.items()) for part in ("--env", _render_variable(key, value))),
        *(part for key in sorted(passed) if key not in variables for part in ("--env", key)),
        *options,
        *("--entrypoint", command[0], image, *command[1:]),
    )


def _render_resources(resources: Resources) -> tuple[str, ...]:
    """The options of limits and GPUs. A job with GPUs gets what NCCL and pinned host memory want besides."""
    gpus = resources.gpus_per_node
    cpus = None if resources.pinned_cpus or resources.cpus_per_task is None else resources.cpus_per_task
    wanted = (
        ("--memory", resources.memory and resources.memory.lower()),
        ("--cpus", cpus),
        ("--cpuset-cpus", resources.pinned_cpus),
        ("--gpus", gpus or None),
        ("--shm-size", (resources.shm or (_SHM_WITH_GPUS if gpus else "")).lower() or None),
        ("--ulimit", "memlock=-1" if gpus else None),
        ("--ulimit", "stack=67108864" if gpus else None),
    )
    return tuple(part for option, value in wanted if value is not None for part in (option, str(value)))


def _render_variable(key: str, value: str) -> str:
    """A variable by name, so that its value is in no log; the docker command's own are given with their value."""
    return f"{key}={value}" if _is_of_docker(key) else key


def _is_of_docker(key: str) -> bool:
    return key in ("HOME", "PATH") or key.startswith("DOCKER_")


@dataclass(frozen=True, slots=True)
class DockerExecutor:
    """Runs jobs in containers, through the docker command."""

    kinds: frozenset[str] = frozenset({"image"})
    runs_several_tasks: bool = False
    pins_cpus: bool = True

    def run(self, job: Job, environment: PreparedEnvironment, folder: Path, on_line: OnLine | None = None) -> Outcome:
        """Runs a job to its end (see `Executor`); an image that is not here is pulled first."""
        started_at = now()
        image = environment.image or ""
        problem = _find_problem(image)
        if problem is not None:
            return not_started(job, *problem, started_at)
        work = None if environment.folder is None else environment.folder.absolute()
        if "," in f"{folder.absolute()}{work or ''}":
            return not_started(job, f"{folder}: docker cannot mount a path with a comma.", None, started_at)
        settings = read_settings()
        inside, wanted = job.rendered(OUT)
        variables = {
            "HOME": "/tmp",
            "NIGHTJAR_IMAGE": image,
            **environment.variables,
            **wanted,
        }  # the user has no home in the image
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
        environ = {**os.environ, **{key: value for key, value in variables.items() if not _is_of_docker(key)}}
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
                on_poll=memory.look,
                mask=make_mask(job.secrets, os.environ),
            )
        except (OSError, ValueError) as error:  # also a NUL in an argument
            return not_started(job, f"docker cannot be run: {error}.", None, started_at, command)
        log = read_tail(folder / STDERR)
        if _was_not_started(ended, log):
            why = f"docker could not start {inside[0]!r} in {image}: {log}"
            return not_started(job, why, "is the command in the image?", started_at, command)
        ended = replace(seen_from_shell(ended), peak_rss_bytes=memory.peak_rss_bytes)
        return judge_end(job, ended, command, folder, started_at)


def _find_problem(image: str) -> tuple[str, str] | None:
    """Why the image cannot be run, and what to do; None where it can."""
    hint = "start the Docker engine, and check that `docker info` works for this user"
    found = _ask("docker", "image", "inspect", "--format", "{{.Id}}", image)
    if found is None:
        return "there is no docker command on PATH.", "install Docker, or use the executor 'local'"
    if found.returncode == 0:
        return None
    if "No such image" not in found.stderr:
        return f"the Docker engine does not answer: {found.stderr.strip()}", hint
    pulled = _ask("docker", "pull", "--quiet", image, timeout_s=_PULL_TIMEOUT_S)
    if pulled is not None and pulled.returncode == 0:
        return None
    why = pulled.stderr.strip() if pulled is not None else "docker is gone"
    return f"no image {image!r} here, and it cannot be pulled: {why}", "`nox -s images` builds Nightjar's own images"


def _kill(name: str) -> None:
    _ask("docker", "kill", name)


def _ask(*command: str, timeout_s: float = _ASK_TIMEOUT_S) -> subprocess.CompletedProcess[str] | None:
    """Runs a short command of docker; None where there is no docker."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=timeout_s, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer to `{' '.join(command)}` in {timeout_s:g} s")
    except OSError:
        return None


def _was_not_started(ended: Ended, log: str) -> bool:
    if ended.timed_out:
        return False
    if ended.exit_code == _DAEMON_FAILED:
        return True
    return ended.exit_code in (_CANNOT_RUN, _NOT_FOUND) and (
        "Error response from daemon" in log or "[FATAL tini" in log
    )
