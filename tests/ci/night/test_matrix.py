"""Which jobs a matrix stands for, and which matrices are refused."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.errors import InputError
from nightjar_ci.night.matrix import Matrix, expand, move_job, read_matrix, select_jobs
from tests.places import ROOT


def matrix(*entries: dict[str, Any], **defaults: Any) -> Matrix:
    return Matrix.model_validate(
        {
            "schema": "nightjar.matrix/1",
            "name": "m",
            "defaults": defaults,
            "job": [{"command": ["true"], **entry} for entry in entries],
        }
    )


def test_the_nightly_trains_and_profiles_every_model() -> None:
    jobs = expand(read_matrix(ROOT / "ci" / "matrix" / "nightly-cpu.toml"))
    assert sum(job.kind == "train" for job in jobs) == 18
    assert {job.cell for job in jobs if job.kind == "profile"} == {
        "gpt_tiny-profile-cpu-f32-dp1",
        "vit_tiny-profile-cpu-f32-dp1",
        "gpt_tiny-profile-cpu-f32-dp2.fsdp2.tp2",
    }


def test_the_first_page_is_a_part_of_the_nightly() -> None:
    quick, nightly = (expand(read_matrix(ROOT / "ci" / "matrix" / f"{name}-cpu.toml")) for name in ("quick", "nightly"))
    assert [job.id for job in quick if replace(job, usual_s=None) not in nightly] == []
    assert all(job.usual_s for job in quick)
    assert {job.kind for job in quick} == {"train", "profile"}
    assert len({job.cell for job in quick}) < len(quick)  # several seeds


def test_axes_seeds_and_defaults_expand_in_order() -> None:
    jobs = expand(
        matrix(
            {
                "name": "x-{mesh}",
                "command": ["train", "{mesh}", "{seed}", "{out}", "{job}", "{{}}"],
                "axes": {"mesh": ["a", "1", "c", 2]},
                "seeds": [3, 1],
                "exclude": [{"mesh": 1}, {"mesh": "2"}],  # values are text
                "include": [{"mesh": "d"}],
                "env": {"B": "{mesh}"},
            },
            env={"A": "1", "B": "2"},
            timeout_s=9,
        )
    )
    assert [job.id for job in jobs] == ["x-a-s3", "x-a-s1", "x-c-s3", "x-c-s1", "x-d-s3", "x-d-s1"]
    first = jobs[0]
    assert (first.cell, first.replicate, first.timeout_s) == ("x-a", 3, 9)
    command, variables = first.rendered(Path("/o{ut"))
    assert command == ("train", "a", "3", "/o{ut", "x-a-s3", "{}")
    assert variables == {"A": "1", "B": "a", "NIGHTJAR_JOB": "x-a-s3", "NIGHTJAR_SEED": "3", "NIGHTJAR_OUT": "/o{ut"}


def test_a_job_without_seeds_has_no_suffix_and_seed_zero() -> None:
    (job,) = expand(matrix({"name": "x", "command": ["t", "{seed}"]}))
    assert (job.id, job.cell, job.replicate) == ("x", "x", None)
    assert job.rendered(Path("/o"))[0] == ("t", "0")


@pytest.mark.parametrize(
    ("executor", "environment", "second"),
    [
        ("local", "uv:jax=={v}", "uv:jax==0.10.2"),
        ("local", "project:./{v},six=={v}", "project:./0.10.2,six==0.10.2"),
        ("docker", "image:{v}", "image:0.10.2"),
    ],
)
def test_an_environment_is_checked_when_its_axes_are_filled(executor: str, environment: str, second: str) -> None:
    entry = {"name": "x-{v}", "axes": {"v": ["0.10.1", "0.10.2"]}, "executor": executor, "environment": environment}
    assert expand(matrix(entry))[1].environment == second


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": "x-{mseh}", "axes": {"mesh": ["a"]}}, r"unknown placeholder '\{mseh\}'.*expected one of \{mesh\}"),
        ({"name": "x", "command": ["t", "{sed}"]}, r"unknown placeholder '\{sed\}'"),
        ({"name": "x", "env": {"A": "{no}"}}, r"unknown placeholder '\{no\}'"),
        ({"name": "x", "command": ["t", "{"]}, "a lone '{'"),
        ({"name": "x-{seed}"}, r"unknown placeholder '\{seed\}'"),
        ({"name": "x", "exclude": [{"mehs": "a"}]}, "unknown axis 'mehs' in 'exclude'"),
        ({"name": "x-{a}{b}", "axes": {"a": [1], "b": [2]}, "include": [{"a": 3}]}, "lacks the axis 'b'"),
        ({"name": "x", "seeds": [1, 1]}, "duplicate seed 1"),
        ({"name": "x", "axes": {"out": ["a"]}}, "'out' has the name of a placeholder"),
        ({"name": "../x"}, "not a safe file name"),
        ({"name": "x-{a}", "axes": {"a": ["b/c"]}}, "'x-b/c' is not a safe file name"),
        ({"name": "x" * 121}, "not a safe file name"),
        ({"name": "x", "axes": {"a": ["b", "c"]}}, "2 jobs have the id 'x'"),
        ({"name": "x", "executor": "docker"}, "'docker' cannot run in the environment 'current': expected local"),
        ({"name": "x", "environment": "image:y"}, "'local' cannot run in the environment 'image:y': expected docker"),
        ({"name": "x-{v}", "environment": "uv:jax={v}", "axes": {"v": [1]}}, "'jax=1' is not a list of requirements"),
        ({"name": "x", "environment": "uv:{out}"}, r"unknown placeholder '\{out\}'.*expected one of \{job\}, \{seed\}"),
    ],
)
def test_a_mistake_is_named(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        expand(matrix(entry))


@pytest.mark.parametrize(
    "entry",
    [
        {"executor": "slrum"},
        {"environment": "uv:"},
        {"environment": "uv:jax=1"},
        {"environment": "conda:x"},
        {"seeds": []},
        {"seeds": [-1]},
        {"seeds": ["0"]},
        {"timeout_s": 0},
        {"timeout_s": float("inf")},
        {"kind": "other"},
        {"command": []},
        {"axes": {"a": []}},
    ],
    ids=str,
)
def test_a_value_that_no_job_can_have_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"job.0.{next(iter(entry))}"):
        matrix({"name": "x", **entry})


def test_ids_of_two_entries_must_differ() -> None:
    with pytest.raises(InputError, match="2 jobs have the id 'x-s0'"):
        expand(matrix({"name": "x", "seeds": [0]}, {"name": "x-s0"}))


def test_jobs_are_selected_by_glob_and_seed() -> None:
    jobs = expand(matrix({"name": "gpt", "seeds": [0, 1]}, {"name": "vit", "seeds": [0, 1]}))
    assert [job.id for job in select_jobs(jobs, pattern="gpt*", seeds=[1])] == ["gpt-s1"]
    with pytest.raises(InputError, match=r"id like 'gtp\*'.*expected one of gpt-s0, gpt-s1, vit-s0, vit-s1"):
        select_jobs(jobs, pattern="gtp*")


def test_a_job_is_moved_only_where_it_can_run() -> None:
    (job,) = expand(matrix({"name": "x"}))
    assert move_job(job, executor="docker", environment="image:y").executor == "docker"
    with pytest.raises(InputError, match="cannot run in the environment"):
        move_job(job, executor="docker")


def test_a_job_of_several_nodes_is_tried_here_as_one_process_and_only_where_asked() -> None:
    (job,) = expand(matrix({"name": "a", "resources": {"nodes": 2, "gpus_per_task": 8}}, executor="slurm"))
    with pytest.raises(InputError, match="but resources ask for 2 nodes"):
        move_job(job, executor="local")
    moved = move_job(job, executor="local", one_process=True)
    assert (moved.executor, moved.resources.tasks, moved.resources.gpus_per_task) == ("local", 1, 0)


TEXT = st.text("abc._", min_size=1, max_size=6)
AXES = st.dictionaries(
    st.sampled_from(["mesh", "dtype", "model"]), st.lists(TEXT, min_size=1, max_size=3, unique=True), max_size=3
)


@given(axes=AXES, seeds=st.none() | st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True))
def test_expansion_gives_unique_ids_and_the_values_of_axes(axes: dict[str, list[str]], seeds: list[int] | None) -> None:
    name = "-".join(["x", *(f"{{{axis}}}" for axis in axes)])
    command = [*(f"{{{axis}}}" for axis in axes), "{out}"]
    jobs = expand(matrix({"name": name, "command": command, "axes": axes, "seeds": seeds}))
    combinations = 1
    for values in axes.values():
        combinations *= len(values)
    assert len({job.id for job in jobs}) == len(jobs) == combinations * len(seeds or [0])
    for job in jobs:
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", job.id)
        *values, out = job.rendered(Path("/out"))[0]
        assert out == "/out"
        assert all(value in axes[axis] for value, axis in zip(values, axes, strict=True))


TESTS = """
schema = "nightjar.matrix/1"
name = "tests"
[[job]]
name = "{library}-tests"
command = ["pytest", "{source}/tests", "--basetemp={out}/tmp"]
axes = { library = ["flax", "optax"] }
source = "{library}"
KIND
"""


def test_a_test_job_says_how_it_is_read_and_whose_source_it_needs(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(TESTS.replace("KIND", 'tests = { known_failure = [{ test = "a.*", reason = "old" }] }'))
    job, other = expand(read_matrix(path))
    assert (job.kind, job.source, other.source) == ("test", "flax", "optax")
    assert job.tests is not None
    assert [entry.reason for entry in job.tests.known_failure] == ["old"]
    placed = job.with_source(Path("/src/flax-1{0}"))
    assert placed.rendered(Path("/out"))[0] == ("pytest", "/src/flax-1{0}/tests", "--basetemp=/out/tmp")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('kind = "train"\ntests = { reruns = 1 }', "expected kind = 'test'"),
        ('kind = "test"\ntests = { junit = "../a.xml" }', "must be inside the job's folder"),
        ('kind = "test"\nadapter = { format = "csv", curve = [{ field = "loss" }] }', "expected kind = 'train'"),
        ('adapter = { format = "csv", curve = [{ field = "loss" }] }\n[defaults]\nkind = "test"', "kind = 'train'"),
        ('kind = "test"\nexecutor = "docker"\nenvironment = "image:a"', "needs files of this machine"),
        ('measure = ["front_end"]\n[defaults]\nkind = "profile"', "measure adds to a result, and a capture has none"),
        ('kind = "test"\ntests = { known_failure = [{ test = "a", reason = "" }] }', "at least 1 character"),
    ],
)
def test_what_a_test_job_cannot_be_is_refused(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "m.toml"
    path.write_text(TESTS.replace("KIND", line))
    with pytest.raises(InputError, match=message):
        read_matrix(path)
