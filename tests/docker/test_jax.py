"""What the jax image and all above it hold: what the locks say, and it computes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError
from docker.types import DeviceRequest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nightjar_ci.images.lock.locks import FOLDER
from nightjar_ci.images.tested import COMPILES, COMPUTES, GPU
from nightjar_ci.images.tree import Image
from nightjar_models.hardware.target import read_target
from tests.docker.conftest import CHECKOUT, Runner, find_flavor

pytestmark = pytest.mark.docker

LOCKS = {
    "jax": ["base", "jax-{flavor}"],
    "models": ["base", "jax-{flavor}", "models"],
    "devcontainer": ["base", "jax-{flavor}", "models", "dev"],
    "devel": ["base", "jax-{flavor}", "devel"],
    "profiling": ["base", "jax-{flavor}", "profiling"],
    "te": ["base", "jax-{flavor}", "te-{flavor}", "te-source"],
    "dali": ["base", "jax-{flavor}", "dali-{flavor}"],
}
ALL_OWN = {"nightjar-ci", "nightjar-models", "nightjar-profiling"}
OWN = {"models": ALL_OWN, "devcontainer": ALL_OWN, "profiling": {"nightjar-profiling"}}
LIST_INSTALLED = """
import importlib.metadata, json, platform
origin = lambda d: json.loads(d.read_text("direct_url.json") or "{}").get("vcs_info", {}).get("commit_id")
installed = {d.name: origin(d) or d.version for d in importlib.metadata.distributions(path=[PATH])}
print(json.dumps({"python": platform.python_version(), "machine": platform.machine(), "installed": installed}))
""".replace("PATH", "__import__('sysconfig').get_path('purelib')")

# The program of a device that is described by a text: one kernel of its product must be machine code.
COMPILE = """
import json, sys, jax
from jax.experimental import topologies
devices = topologies.get_topology_desc(platform="cuda", target_config=sys.argv[1], topology="1x1x1").devices
here = jax.sharding.NamedSharding(jax.sharding.Mesh(devices, "x"), jax.P())
given = jax.ShapeDtypeStruct((256, 256), "float32", sharding=here)
text = jax.jit(lambda x: jax.numpy.tanh(x) + 1).lower(given).compile().as_text()
print(json.dumps({"device": devices[0].device_kind, "kernels": "fusion" in text}))
"""
COMPUTE = """
import collections, json, jax
devices, ones = jax.devices("cuda"), jax.numpy.ones((64, 64))
for device in devices:
    assert float((jax.device_put(ones, device) @ ones).sum()) == 64**3, device
assert float(jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(jax.numpy.ones(len(devices)))[0]) == len(devices)
print(json.dumps(collections.Counter(device.device_kind for device in devices)))
"""
COUNT_CACHE = """
import jax, jax.monitoring, os
counts = {"hits": 0, "misses": 0}
def count(event, **_):
    name = event.removeprefix("/jax/compilation_cache/cache_")
    if name in counts: counts[name] += 1
jax.monitoring.register_event_listener(count)
jax.jit(lambda x: (x @ x).sum())(jax.numpy.ones((8, 8)))
print(counts["hits"], counts["misses"], os.uname().nodename, os.getuid())
"""


def locked_versions(name: str, python: str, machine: str) -> dict[str, str]:
    environment = {"python_full_version": python, "python_version": ".".join(python.split(".")[:2])}
    environment |= {"sys_platform": "linux", "platform_machine": machine, "implementation_name": "cpython"}
    versions: dict[str, str] = {}
    for line in (CHECKOUT / FOLDER / f"{name}.txt").read_text().splitlines():
        if line[:1].isalnum():
            requirement = Requirement(line.rstrip("\\ "))
            if requirement.marker is None or requirement.marker.evaluate(environment):
                commit = re.search(r"@([0-9a-f]{40})", requirement.url or "")
                version = commit[1] if commit else str(requirement.specifier).removeprefix("==")
                versions[canonicalize_name(requirement.name)] = version
    return versions


@pytest.fixture
def cuda(image: Image) -> None:
    if "cuda" not in image.tag:
        pytest.skip("the image has no CUDA")


def test_image_holds_exactly_what_its_locks_say(run: Runner, image: Image) -> None:
    found = json.loads(run("python", "-c", LIST_INSTALLED))
    installed = {canonicalize_name(name): version for name, version in found["installed"].items()}
    own = {name for name in installed if name.startswith("nightjar-")}
    flavor = find_flavor(image)
    expected: dict[str, str] = {}
    for lock in LOCKS[image.name]:
        expected |= locked_versions(lock.format(flavor=flavor), found["python"], found["machine"])
    assert {name: version for name, version in installed.items() if name not in own} == expected
    assert own == OWN.get(image.name, set())


def test_jax_computes_without_network_home_or_root(run: Runner, prove: Callable[[str], None]) -> None:
    code = "import jax, flax.nnx, grain, optax, orbax.checkpoint as _; x = jax.numpy.ones((8, 8)); print((x @ x).sum())"
    options = {"environment": {"JAX_PLATFORMS": "cpu", "HOME": "/nowhere"}, "user": "54321:54321", "read_only": True}
    assert float(run("python", "-c", code, **options)) == 512
    prove(COMPUTES)


@pytest.mark.usefixtures("cuda")
def test_jax_compiles_for_gpus_that_are_not_there(run: Runner, prove: Callable[[str], None]) -> None:
    for gpu in ("h100", "b200"):
        target = read_target(gpu)
        said = run("python", "-c", COMPILE, target.text, environment={"JAX_PLATFORMS": "cpu"})
        assert json.loads(said) == {"device": target.name, "kernels": True}
        prove(f"{COMPILES}{gpu}")


@pytest.mark.usefixtures("cuda")
def test_jax_computes_on_each_gpu_of_the_engine(run: Runner, prove: Callable[[str], None]) -> None:
    gpus = [DeviceRequest(count=-1, capabilities=[["gpu"]])]
    try:
        run("nvidia-smi", device_requests=gpus)
    except APIError:
        pytest.skip("the engine gives containers no GPU")
    devices = json.loads(run("python", "-c", COMPUTE, device_requests=gpus))
    assert devices
    for kind, count in devices.items():
        prove(f"{GPU}{kind.removeprefix('NVIDIA ')}")
        if count > 1:
            prove(f"adds over {count} GPUs")


def test_compiled_python_is_checked_against_no_time(run: Runner, image: Image) -> None:
    code = "import jax._src.core as core; print(open(core.__cached__, 'rb').read(8)[4])"
    flags = {"devel": "3"}.get(image.name, "1")  # PEP 552: hash-based; the source is checked where it is edited
    assert run("python", "-c", code).strip() == flags


def test_no_file_of_the_environment_is_newer_than_the_pinned_date(run: Runner) -> None:
    pins = json.loads((CHECKOUT / "docker/versions.json").read_text())["variable"]
    epoch = int(pins["SOURCE_DATE_EPOCH"]["default"])
    assert run("find", "/opt/nightjar/lib", "!", "-newermt", f"@{epoch - 1}").split() == []
    assert run("find", "/opt/nightjar", "-newermt", f"@{epoch}").split() == []


def test_no_note_of_the_installer_names_the_time_of_its_build(run: Runner) -> None:
    assert run("find", "/opt/nightjar", "-name", "uv_cache.json").split() == []
    assert run("sh", "-c", "grep -l uv_cache.json /opt/nightjar/lib/*/site-packages/*/RECORD || true").split() == []


@pytest.mark.usefixtures("cuda")
def test_cuda_libraries_are_as_new_as_those_that_jax_was_compiled_against(run: Runner) -> None:
    probe = CHECKOUT / "models" / "nightjar_models" / "doctor" / "probe.py"
    mount = {str(probe): {"bind": "/probe.py", "mode": "ro"}}
    libraries = json.loads(run("python", "/probe.py", volumes=mount))["libraries"]
    assert {"cuDNN", "cuBLAS", "NCCL"} <= {library["name"] for library in libraries}
    assert [library for library in libraries if "error" in library] == []
    assert [one["name"] for one in libraries if one["loaded"] < one.get("compiled", [])] == []


def test_a_filled_compilation_cache_serves_another_user_host_and_path(run: Runner, tmp_path: Path) -> None:
    always = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    environment = {"JAX_PLATFORMS": "cpu", **always}

    def compile_at(path: str, mode: str, **options: Any) -> list[str]:
        variables = {**environment, "JAX_COMPILATION_CACHE_DIR": path, **options.pop("environment", {})}
        volumes = {str(tmp_path): {"bind": path, "mode": mode}}
        return run("python", "-c", COUNT_CACHE, environment=variables, volumes=volumes, **options).split()

    tmp_path.chmod(0o777)
    hits, misses, *who = compile_at("/filled", "rw", hostname="alpha")
    assert (hits, who) == ("0", ["alpha", "10001"])
    assert int(misses) > 0
    elsewhere: dict[str, Any] = {"hostname": "beta", "user": "54321:54321", "working_dir": "/tmp"}
    assert compile_at("/else/where", "ro", **elsewhere) == [misses, "0", "beta", "54321"]
    other = {"XLA_FLAGS": "--xla_cpu_enable_fast_math=true"}  # is part of every key
    assert compile_at("/else/where", "ro", **elsewhere, environment=other)[:2] == ["0", misses]
