"""Several ranks, for real: two archives of one A100 job, and two JAX processes that reduce over the loopback."""

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nightjar_profiling.analyses.communication.collectives import find_stragglers
from nightjar_profiling.capture_folder.tables import Tables, read_tables
from tests.places import SHARED_DATA
from tests.profiling.conftest import runner

pytestmark = pytest.mark.slow

DATA = SHARED_DATA / "nsys-jax"
SLOW_S = 0.03

PROGRAM = """
import sys, time
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

rank, port, slow_s = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)
mesh = Mesh(np.array(jax.devices()), ("data",))

@jax.jit
def step(w, x):
    return w - 1e-4 * jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).sum())(w)

w = jax.device_put(jnp.ones((128, 128)), NamedSharding(mesh, PartitionSpec()))
x = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("data")), np.ones((64, 128), "float32"))
for number in range(8):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        time.sleep(slow_s if rank == 1 else 0)
        w = step(w, x).block_until_ready()
"""


def merged(folder: Path, *ranks: Path) -> Tables:
    done = runner(folder)("merge", *ranks, "--out", "all")
    assert done.returncode == 0, done.stderr
    return read_tables(folder / "all" / "tables")


def test_the_rank_that_sleeps_in_each_step_of_two_jax_processes_is_the_straggler(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def capture(rank: int) -> subprocess.CompletedProcess[str]:
        out = ("--backend", "jax", "--steps", "2:7", "--out", f"rank{rank}")
        program = (sys.executable, "train.py", str(rank), str(port), str(SLOW_S))
        command = [sys.executable, "-m", "nightjar_profiling", "capture", *out, "--", *program]
        environ = {**os.environ, "JAX_PLATFORMS": "cpu"}
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)

    with ThreadPoolExecutor() as pool:
        for done in pool.map(capture, (0, 1)):
            assert done.returncode == 0, done.stderr
    tables = merged(tmp_path, tmp_path / "rank0", tmp_path / "rank1")
    assert tables.ops["rank"].unique().sort().to_list() == [0, 1]
    assert tables.programs.filter(name="jit_step").height == 1
    worst, other = find_stragglers(tables).rows(named=True)
    assert (worst["rank"], other["rank"]) == (1, 0)
    assert worst["stability"] >= 0.8
    assert worst["late_ns"] > SLOW_S * 1e9 / 2
    waited = tables.collectives.filter(rank=0)["wait_ns"].median()
    assert isinstance(waited, float)
    assert waited > SLOW_S * 1e9 / 2


@pytest.mark.skipif(not DATA.is_dir(), reason=f"{DATA} is not there: NIGHTJAR_TEST_DATA names its folder")
def test_two_processes_of_a_job_on_a100_become_ranks_of_one_capture(tmp_path: Path) -> None:
    for process in (0, 1):
        trace = DATA / f"pax_fsdp4_4proc_proc{process}.zip"
        assert runner(tmp_path)("report", trace, "--out", f"rank{process}").returncode == 0
    alone = [read_tables(tmp_path / f"rank{process}" / "tables") for process in (0, 1)]
    tables = merged(tmp_path, tmp_path / "rank0", tmp_path / "rank1")
    assert tables.ops["rank"].unique().sort().to_list() == [0, 1]
    assert tables.device_time_ns == sum(one.device_time_ns for one in alone)
    assert tables.programs.height == alone[0].programs.height == alone[1].programs.height
    offset_ns, residual_ns = tables.clocks.filter(rank=1).select("offset_ns", "residual_ns").row(0)
    assert offset_ns == pytest.approx(28_540_904, abs=5_000)  # two nodes' clocks, 28 ms apart
    assert residual_ns < 5_000
    assert tables.collectives["wait_ns"].null_count() == 0
    assert all(one < 0.9 for one in find_stragglers(tables)["stability"])  # they take turns: no rank is slow
