"""A GPT small enough to train within a second, and the command as a user calls it."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from nightjar_models.cli import main
from tests.called import call
from tests.kept import ISA, keep_in_process

os.environ.setdefault("JAX_PLATFORMS", "cpu")

SMALL = [
    "model.length=16",
    "model.width=16",
    "model.feed_forward=32",
    "model.heads=2",
    "model.layers=1",
    "batch_size=8",
]
# XLA compiles these programs in two thirds of the CPU time without its fusion emitters and in one part instead of 32.
# Later versions of jaxlib know no other way than the emitters.
QUICK: dict[str, str | bool | int] = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
USUAL: dict[str, str | bool | int] = {"xla_cpu_use_fusion_emitters": True, "xla_cpu_parallel_codegen_split_count": 32}
QUICK_COMPILE, USUAL_COMPILE = (QUICK, USUAL) if version("jaxlib").startswith("0.10.") else ({}, {})
QUICK_FLAGS = " ".join(f"--{name}={str(value).lower()}" for name, value in QUICK_COMPILE.items())  # for XLA_FLAGS


def compile_quickly() -> None:
    """Lets XLA compile what tests compute in this process without optimizing machine code: a third of the CPU time.

    XLA reads XLA_FLAGS once, so they are set for that moment only: commands that tests start compile as a user's do. A
    test about what optimization does asks for it in `compiler_options`: USUAL_COMPILE and a level.
    """
    import jax  # noqa: F401  # first, as it tells XLA to log less
    import jaxlib.xla_client

    with pytest.MonkeyPatch.context() as patch:
        given = os.environ.get("XLA_FLAGS", "")
        patch.setenv("XLA_FLAGS", f"--xla_backend_optimization_level=0 {QUICK_FLAGS} {given}")
        jaxlib.xla_client.CompileOptions()


if os.environ["JAX_PLATFORMS"] == "cpu":
    compile_quickly()
    keep_in_process()

SMALL_OPTIONS = [part for setting in SMALL for part in ("--set", setting)]


def draw_all_but_parameters(program: Any) -> Any:
    """The first state as a tree whose parameters are shapes, for a test that fills them in.

    Counters, random keys and scales are those of the program; to compile the drawing of parameters takes longer.
    """
    import jax
    from flax import nnx

    options = {"xla_backend_optimization_level": "0", **QUICK_COMPILE}
    draw = jax.jit(lambda: nnx.filter_state(program._start(0), nnx.Not(nnx.Param)), compiler_options=options)
    return nnx.merge_state(program.abstract, draw())


def run_steps(program: Any, batches: Sequence[Any]) -> tuple[Any, list[float]]:
    """The state behind these batches, and the loss of each step, from seed 0."""
    from nightjar_models.parallel.sharding import use_mesh

    step, state, losses = program.bind(program.lower(batches[0]).compile()), program.initialize(0), []
    for batch in batches:
        with use_mesh(program.mesh):
            state, loss = step(state, batch)
        losses.append(float(loss))
    return state, losses


def keep_isa(flags: str = "") -> dict[str, str]:
    """XLA_FLAGS for a process of its own: these flags and the instruction set that this process was given."""
    given = [flags, *ISA.findall(os.environ.get("XLA_FLAGS", ""))]
    return {"XLA_FLAGS": " ".join(filter(None, given))} if any(given) else {}


Command = Callable[..., subprocess.CompletedProcess[str]]


def run_command(
    folder: Path, *arguments: str, compiled: Mapping[str, str], limit: int | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `nightjar-models` with these arguments in a folder; `limit` caps the size of any file in KiB."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("NIGHTJAR_") and k != "XLA_FLAGS"}
    environment |= keep_isa(environment.get("XLA_FLAGS", ""))
    program = [str(Path(sys.executable).parent / "nightjar-models"), *arguments]
    command = program if limit is None else ["bash", "-c", f'ulimit -f {limit}; exec "$@"', "bash", *program]
    if limit is not None:
        environment["PYTHONDONTWRITEBYTECODE"] = "1"  # Python 3.11 takes a module of which a part was written as whole
        environment["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = str(1 << 40)  # nor a part of a program for others
    return subprocess.run(
        command, cwd=folder, env={**kept, **compiled, **environment}, capture_output=True, text=True, check=False
    )


@pytest.fixture
def nightjar_models(tmp_path: Path, compiled: dict[str, str]) -> Command:
    return functools.partial(run_command, tmp_path, compiled=compiled)


@pytest.fixture(scope="session")
def float16() -> None:
    """Skips where XLA compiles no float16, through which CPUs convert FP8: for x86 processors without F16C.

    jaxlib 0.10.2 leaves the conversion to functions of compiler-rt there (`__extendhfsf2`) and does not find them.
    """
    import jax
    import jax.numpy as jnp

    try:
        jax.jit(lambda x: x.astype(jnp.float16).astype(x.dtype))(jnp.ones(2))
    except jax.errors.JaxRuntimeError as error:
        if "Failed to materialize symbols" not in str(error):
            raise
        pytest.skip(f"XLA compiles no float16 for this instruction set: {error}")


@pytest.fixture
def called(tmp_path: Path) -> Command:
    """`nightjar-models` in an empty folder, in this process: with one device, and compiled without optimization."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("NIGHTJAR_")}
    return functools.partial(call, main, cwd=tmp_path, environ=environ)
