"""Are facts bit-equal where nothing changed? Of three programs, over five processes, and over two machines.

The repeats on this machine differ in host name, HOME, number of cores and path of the checkout. The second machine is
a container of the ground floor of our images (`docker/ground-floor.sh`: Debian, made where it is missing): another
distribution with its own C library and without a CUDA toolkit, another host name, HOME, one core, other paths of
packages and checkout, no network. Kernel and processor are those of this machine.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from tests.bench.aot.compiled import Compiled, compile_one, find_python, run_two_at_a_time
from tests.bench.aot.faults import BASE
from tests.bench.table import Row
from tests.places import ROOT

REPEATS = 5
FEW = ("--set", "model.layers=2")
PROGRAMS = {  # layers that are scanned, layers that are not, and experts
    "llama": BASE,
    "vit": ("vit_b16", "--target", "b200x8", "--mesh", "dp8", *FEW, "--xla", "xla_gpu_enable_triton_gemm=false"),
    "moe": ("moe_8x7b", "--target", "a100x8", "--mesh", "fsdp2.ep4", *FEW),
}
PACKAGES = "/srv/packages/lib/site-packages"  # lines of libraries are told by this name


SECOND = "on a second machine"


def list_goals(quick: bool, folder: Path) -> list[str]:
    programs = list(PROGRAMS)[: 1 if quick else None]
    return [f"{name}: facts that differ {where}" for name in programs for where in ("from the first of ", SECOND)]


def measure(quick: bool, folder: Path) -> list[Row]:
    python, tag = find_python(), find_ground_floor()
    return [row for name in list(PROGRAMS)[: 1 if quick else None] for row in repeat(name, python, tag, quick, folder)]


def repeat(name: str, python: Path, tag: str | None, quick: bool, folder: Path) -> Iterator[Row]:
    program, folder, count = PROGRAMS[name], folder / name, 2 if quick else REPEATS
    calls = [partial(compile_one, python, program, folder / "plain")]
    calls += [partial(compile_elsewhere, python, program, folder, number) for number in range(1, count)]
    if tag is not None:
        calls.append(partial(compile_in_container, python, program, tag, folder / "container"))
    made = run_two_at_a_time(calls)
    for number, one in enumerate(made):
        if one.record is None:
            raise SystemExit(f"repeat {number} of {name} does not compile: {one.said}")
    facts = [one.record.facts for one in made if one.record is not None]
    here = sum(one != facts[0] for one in facts[:count])
    yield Row(f"{name}: facts that differ from the first of {count}", here, goal=0, unit="repeats")
    name = f"{name}: facts that differ {SECOND}"
    if tag is None:
        yield Row(name, lack="no Docker engine")
    else:
        yield Row(name, facts[count] != facts[0], goal=0, unit="machines")


def compile_elsewhere(python: Path, program: Sequence[str], folder: Path, number: int) -> Compiled:
    """With another host name (as root), HOME, cores and path of the checkout."""
    home, checkout = folder / f"home{number}", folder / f"checkout{number}"
    home.mkdir(parents=True, exist_ok=True)
    shutil.copytree(ROOT / "models", checkout, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    cores = "0" if number % 2 else f"0-{(os.cpu_count() or 1) - 1}"
    before = ["taskset", "-c", cores]
    if os.geteuid() == 0:
        before = ["unshare", "--uts", "sh", "-c", f'hostname other{number}; exec "$@"', "sh", *before]
    variables = {"HOME": str(home), "PYTHONPATH": str(checkout)}
    return compile_one(python, program, folder / f"repeat{number}", before=before, variables=variables)


def find_ground_floor() -> str | None:
    """The tag of a Debian that is no part of this machine; None where no engine runs it."""
    script = [str(ROOT / "docker" / "ground-floor.sh")]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"no second machine: {done.stderr.strip()}", file=sys.stderr, flush=True)
        return None
    return done.stdout.split()[-1]


def compile_in_container(python: Path, program: Sequence[str], tag: str, out: Path) -> Compiled:
    base = Path(os.path.realpath(python)).parents[1]
    [packages] = (python.parents[1] / "lib").glob("python*/site-packages")
    mounts = {base: f"{base}:ro", packages: f"{PACKAGES}:ro", ROOT / "models": "/srv/checkout:ro", out.parent: "/out"}
    variables = {"HOME": "/srv/home", "JAX_PLATFORMS": "cpu", "PYTHONPATH": f"{PACKAGES}:/srv/checkout"}
    argv = ["docker", "run", "--rm", "--network", "none", "--hostname", "elsewhere", "--cpuset-cpus", "0"]
    argv += [word for place, mounted in mounts.items() for word in ("--volume", f"{place}:{mounted}")]
    argv += [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    return compile_one(base / "bin" / python.resolve().name, program, out, before=[*argv, tag], to=f"/out/{out.name}")
