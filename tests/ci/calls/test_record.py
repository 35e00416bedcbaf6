"""The recording of a matrix: which jobs run, how, and what their document says."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from nightjar_ci.calls.record import choose_jobs, join, record_matrix, recorded_job
from nightjar_ci.calls.recording import Read, Recording
from nightjar_ci.environments.prepare import Environments
from nightjar_ci.errors import InputError
from nightjar_ci.formats.calls import find_shares
from tests.ci.jobs import make_job
from tests.ci.nights import failed


def test_one_local_job_of_each_cell_is_recorded_and_no_capture() -> None:
    jobs = [
        make_job(id="a-s0", cell="a"),
        make_job(id="a-s1", cell="a"),
        make_job(id="b", cell="b", kind="profile"),
        make_job(id="c", cell="c", executor="slurm"),
    ]
    assert [job.id for job in choose_jobs(jobs)] == ["a-s0"]
    with pytest.raises(InputError, match="no job of this matrix can be recorded"):
        choose_jobs(jobs[2:])


def test_the_recorder_comes_before_the_path_of_the_job_or_of_the_caller(tmp_path: Path) -> None:
    folder = tmp_path / "with {braces}"
    job = make_job()
    inherited = recorded_job(job, folder, ["jax"], {"PYTHONPATH": "/theirs"})
    own = recorded_job(replace(job, env={"PYTHONPATH": "{out}/mine"}), folder, ["jax"], {"PYTHONPATH": "/theirs"})
    assert inherited.rendered(tmp_path)[1]["PYTHONPATH"] == f"{folder}/on-path{os.pathsep}/theirs"
    assert own.rendered(tmp_path)[1]["PYTHONPATH"] == f"{folder}/on-path{os.pathsep}{tmp_path}/mine"


def test_a_recorded_job_has_three_times_its_limit_since_the_recorder_slows_it_down(tmp_path: Path) -> None:
    assert recorded_job(make_job(timeout_s=10.0), tmp_path, ["jax"], {}).timeout_s == 30.0


def test_a_job_is_recorded_while_it_runs(tmp_path: Path) -> None:
    package = tmp_path / "path" / "library"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("def add(x):\n    return x + 1\n\ndef left():\n    pass\n")
    code = "import library; library.add(1); library.left; raise SystemExit(1)"
    job = make_job(kind="test", command=("python", "-c", code), env={"PYTHONPATH": str(tmp_path / "path")})
    used = {"library.add": 3, "library.left": 2}
    calls = record_matrix("mine", [job], tmp_path / "calls", ["library"], used, Environments())
    assert calls.functions == ("library:<module>", "library:add") or calls.functions == ("library:add",)
    assert calls.names["library.add"].own == (job.cell,)
    (share, total) = find_shares(calls)
    assert (share.used, share.executed, share.weight, share.executed_weight) == (2, 1, 5, 3)
    assert share.missing == total.missing == ("library.left",)


def test_a_job_that_leaves_nonsense_is_invalid_and_the_others_are_recorded(tmp_path: Path) -> None:
    write = "import os, pathlib; pathlib.Path(os.environ['NIGHTJAR_CALLS'], '1.jsonl').write_text('[\\n')"
    jobs = [
        make_job(id=cell, cell=cell, kind="test", command=("python", "-c", code.replace("{", "{{")))
        for cell, code in {"hostile": write, "honest": "pass"}.items()
    ]
    calls = record_matrix("mine", jobs, tmp_path / "calls", ["json"], {}, Environments())
    assert {cell: entry.state for cell, entry in calls.cells.items()} == {"hostile": "invalid", "honest": "completed"}


def test_a_name_that_only_another_recorded_library_used_is_not_the_jobs_own() -> None:
    read = Read("jax.numpy.where", "flax", "jax._src.where", ("jax._src:where",))
    recording = Recording(functions={"jax._src:where"}, reads={read})
    calls = join("m", {"cell": (failed("cell-s0"), recording)}, ["jax", "flax"], {"jax.numpy.where": 1})
    assert calls.names["jax.numpy.where"].cells == ("cell",)
    assert calls.names["jax.numpy.where"].own == ()
    assert calls.cells_that_run("jax._src:where") == ("cell",)
    assert calls.cells_that_run("jax._src:other") == ()
