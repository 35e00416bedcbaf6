"""What this machine has of the parts that tests use: a Docker engine, Chromium, PostgreSQL and others.

In: the name of a part, which is the name of its marker, too. Out: why a test cannot use it, with the command that
brings it; None where it works. A part that is there by half (a client without its engine, a program that does not
start) is lacking: each is tried by using it, when a test first asks for it, and once in a process.

A test asks by marker (`pytest.mark.docker`), or through a fixture that is `@asks("docker")`.
"""

import functools
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest

PROBE_S = 20.0  # a busy machine starts Chromium or PostgreSQL in five
SYSTEM = "python3 noxfile.py -s system"
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
REGISTRIES = ("docker-registry", "registry")
SLURM_DAEMONS = ("slurmctld", "slurmd", "munged")
SLURM_ACCOUNTS = ("slurmdbd", "mariadbd", "mariadb-install-db", "my_print_defaults", "sacct", "sacctmgr")
# A matrix in a bake file is what Debian 12's buildx, 0.10, does not read and docker/docker-bake.hcl has.
BAKE = 'target "probe" {\n  name = "probe-${cell}"\n  matrix = { cell = ["a", "b"] }\n}\n'


class LackError(Exception):
    """A part that does not work, and why."""


@dataclass(frozen=True, slots=True)
class Part:
    what: str
    brought_by: str
    probe: Callable[[], object]
    programs: tuple[str, ...] = ()
    on: tuple[str, ...] = ()
    optional: bool = False


AnyFunction = TypeVar("AnyFunction", bound=Callable[..., object])


def asks(*parts: str) -> Callable[[AnyFunction], AnyFunction]:
    """Says that a fixture uses these parts: whoever uses the fixture asks for them. Stands below `@pytest.fixture`."""

    def mark(function: AnyFunction) -> AnyFunction:
        function.__dict__["parts"] = parts
        return function

    return mark


def refuse(config: pytest.Config, lack: str, *, brought: bool = True) -> NoReturn:
    """Skips a test for what is lacking; fails it on a machine that was said to have all that `SYSTEM` brings."""
    if brought and config.getoption("--whole-machine", False):
        pytest.fail(f"{lack}, and --whole-machine says that this is there", pytrace=False)
    pytest.skip(lack)


def resolve(parts: Iterable[str]) -> tuple[str, ...]:
    ordered: dict[str, None] = {}
    for part in parts:
        ordered.update(dict.fromkeys((*resolve(PARTS[part].on), part)))
    return tuple(ordered)


@functools.cache
def find_lack(part: str) -> str | None:
    """Why tests cannot use a part of this machine, and what brings it; None where they can."""
    for below in PARTS[part].on:
        if (lack := find_lack(below)) is not None:
            return lack
    try:
        PARTS[part].probe()
    except (LackError, ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        return f"no {part}: {str(error).rstrip('.')}. Hint: {PARTS[part].brought_by}"
    return None


def find_program(*names: str) -> str:
    """The path of the first of these programs that is on PATH, or where root's daemons lie."""
    path = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin{os.pathsep}/sbin"
    for name in names:
        if (program := shutil.which(name, path=path)) is not None:
            return program
    raise LackError(f"{' or '.join(names)} is not installed")


def answer(*command: str, given: str = "", **variables: str) -> str:
    """What a command writes to stdout; it and all that it started end when it takes longer than `PROBE_S`."""
    name = f"`{' '.join((Path(command[0]).name, *command[1:3]))}`"
    process = subprocess.Popen(
        command, env={**os.environ, **variables}, text=True, errors="replace", start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        try:
            stdout, stderr = process.communicate(given, timeout=PROBE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise LackError(f"{name} takes longer than {PROBE_S:.0f} s") from None
    if process.returncode:
        said = (stderr.strip() or stdout.strip() or "nothing").splitlines()[-1].strip()
        raise LackError(f"{name} ends with exit status {process.returncode}, saying: {said[:200].rstrip('.')}")
    return stdout


@functools.cache
def find_chromium() -> str:
    lacks = []
    for name in CHROMIUMS:
        try:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
                options = ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}")
                drawn = answer(find_program(name), *options, "--dump-dom", "data:text/html,<p>drawn", HOME=profile)
            if "<p>drawn" in drawn:
                return find_program(name)
            lacks.append(f"{name} draws no page")
        except LackError as error:
            lacks.append(str(error))
    raise LackError(next((lack for lack in lacks if "not installed" not in lack), "chromium is not installed"))


def _answers(*command: str) -> Callable[[], object]:
    return lambda: answer(find_program(command[0]), *command[1:])


def _probe_buildx() -> None:
    said = answer(find_program("docker"), "--version").strip()
    if not said.startswith("Docker"):
        raise LackError(f"`docker` is another program; it says: {said}")
    answer("docker", "buildx", "bake", "--print", "--file", "-", "probe-a", given=BAKE)


def _probe_docker() -> None:
    answer("docker", "version", "--format", "{{.Server.Version}}")
    # The library finds an engine by DOCKER_HOST and knows no contexts. Not in this process: a client that reaches no
    # engine leaves a socket open.
    answer(sys.executable, "-c", "import docker; docker.from_env().ping()")


def _probe_postgres() -> None:
    from tests.ci.postgres import find_programs, running_postgres

    psycopg = importlib.import_module("psycopg")
    with running_postgres(find_programs(), PROBE_S) as url, psycopg.connect(url) as connection:
        connection.execute("SELECT 1")


def _probe_registry() -> None:
    from tests.ci.registries import run_registry

    with tempfile.TemporaryDirectory() as folder, run_registry(Path(folder), wait_s=PROBE_S):
        pass


def _probe_podman() -> None:
    find_program("runc")
    with tempfile.TemporaryDirectory(prefix="podman-") as folder:
        store = ("--root", f"{folder}/s", "--runroot", f"{folder}/r", "--storage-driver", "overlay")
        answer(find_program("podman"), *store, "--runtime", "runc", "--cgroup-manager", "cgroupfs", "info")


def _probe_slurm() -> None:
    for name in SLURM_DAEMONS:  # each alone, as a cluster waits for long for one that has not started
        answer(find_program(name), "--version" if name == "munged" else "-V")
    answer(find_program("unshare"), "--mount", "--propagation", "private", "true")
    _start_cluster(accounts=False)


def _start_cluster(*, accounts: bool) -> None:
    from tests.ci.executors.slurm.lab import running_lab

    with running_lab(1, accounts) as lab:
        for command in (("srun", "true"), ("sbatch", "--wrap=true", "--output=/dev/null"), *[("sacct",)] * accounts):
            answer(find_program(command[0]), *command[1:], SLURM_CONF=str(lab.conf))


def _probe_slurm_memory() -> None:
    controller = Path("/sys/fs/cgroup/memory")
    if not os.access(controller, os.W_OK):
        raise LackError(f"{controller}, of cgroup version 1, cannot be written")


def _probe_nsys() -> None:
    from nightjar_profiling.readers.nsys.nsight import find_nsys

    program = find_nsys(os.environ)
    if program is None:
        raise LackError("nsys is neither on PATH nor where NVIDIA installs it")
    with tempfile.TemporaryDirectory() as folder:
        options = ("--trace=nvtx", "--sample=none", "--cpuctxsw=none", "--stats=false", f"--output={folder}/probe")
        answer(program, "profile", *options, "true")
        if not Path(folder, "probe.nsys-rep").is_file():
            raise LackError("`nsys profile` writes no report")


def _probe_gpu() -> None:
    import jax

    if jax.default_backend() != "gpu":
        chosen = os.environ.get("JAX_PLATFORMS", "")
        raise LackError(
            f"JAX computes on {jax.default_backend()} (JAX_PLATFORMS={chosen!r}; tests of GPUs want cuda,cpu)"
        )


def _probe_compiler(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cpp" if name == "g++" else "probe.cu")
        source.write_text("int probe() { return 0; }\n")
        answer(find_program(name), "-shared", "-o", f"{folder}/probe.so", str(source))


def _probe_git() -> None:
    with tempfile.TemporaryDirectory() as folder:
        answer(find_program("git"), "init", "--quiet", folder)


def _probe_root() -> None:
    if os.getuid() != 0:
        raise LackError(f"this is uid {os.getuid()}")


def _probe_sandbox() -> None:
    options = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid", "--unshare-net")
    answer(find_program("bwrap"), *options, "--", "true")


def _probe_mount() -> None:
    with tempfile.TemporaryDirectory() as folder:
        answer(find_program("mount"), "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder)
        answer(find_program("umount"), folder)


PARTS = {
    "buildx": Part(
        "Docker's client with a buildx that reads docker/docker-bake.hcl", SYSTEM, _probe_buildx, programs=("docker",)
    ),
    "docker": Part("a Docker engine", SYSTEM, _probe_docker, on=("buildx",)),
    "browser": Part("headless Chromium", SYSTEM, find_chromium, programs=CHROMIUMS),
    "postgres": Part("a PostgreSQL server", SYSTEM, _probe_postgres, programs=("initdb", "pg_ctl")),
    "registry": Part("a registry of images", SYSTEM, _probe_registry, programs=REGISTRIES),
    "skopeo": Part("skopeo", SYSTEM, _answers("skopeo", "--version"), programs=("skopeo",)),
    "umoci": Part("umoci", SYSTEM, _answers("umoci", "--version"), programs=("umoci",)),
    "podman": Part("Podman", SYSTEM, _probe_podman, programs=("podman",), on=("root",)),
    "sandbox": Part("bubblewrap", SYSTEM, _probe_sandbox, programs=("bwrap",)),
    "git": Part("git", SYSTEM, _probe_git, programs=("git",), optional=True),
    "torch": Part("PyTorch", "pip install torch", lambda: importlib.import_module("torch")),
    "dpkg": Part(
        "dpkg",
        "apt-get install dpkg, or brew install dpkg",
        _answers("dpkg", "--version"),
        programs=("dpkg",),
        optional=True,
    ),
    "cosign": Part(
        "cosign", "apt-get install cosign, of Debian 13", _answers("cosign", "version"), programs=("cosign",)
    ),
    "apptainer": Part(
        "Apptainer",
        "apt-get install apptainer, of Debian's unstable release; its own site has it, too",
        _answers("apptainer", "--version"),
        programs=("apptainer",),
    ),
    "enroot": Part(
        "Enroot",
        "NVIDIA releases it at https://github.com/NVIDIA/enroot",
        _answers("enroot", "version"),
        programs=("enroot",),
    ),
    "slurm": Part(
        "Slurm", "python3 noxfile.py -s slurm", _probe_slurm, programs=(*SLURM_DAEMONS, "sbatch", "srun"), on=("root",)
    ),
    "slurm_accounts": Part(
        "the accounts of a Slurm cluster",
        "python3 noxfile.py -s slurm",
        lambda: _start_cluster(accounts=True),
        programs=SLURM_ACCOUNTS,
        on=("slurm",),
    ),
    "slurm_memory": Part(
        "a cluster that holds jobs to their memory",
        "systemd.unified_cgroup_hierarchy=0 on the command line of the kernel",
        _probe_slurm_memory,
        on=("slurm",),
    ),
    "nsys": Part(
        "Nsight Systems", "apt-get install nsight-systems, of Debian's non-free", _probe_nsys, programs=("nsys",)
    ),
    "gpu": Part("an NVIDIA GPU", "pip install 'nightjar-models[cuda12]' beside a GPU", _probe_gpu),
    "compiler": Part("g++", "apt-get install g++", lambda: _probe_compiler("g++"), programs=("g++",), optional=True),
    "nvcc": Part(
        "nvcc",
        "apt-get install nvidia-cuda-toolkit, of Debian's non-free",
        lambda: _probe_compiler("nvcc"),
        programs=("nvcc",),
        optional=True,
    ),
    "root": Part("root", "sudo", _probe_root),
    "mount": Part("a file system that can be mounted", "root with CAP_SYS_ADMIN", _probe_mount, on=("root",)),
}
