"""Jobs on a cluster, by a kubectl that runs what it is given: their ends, their files, and what stays behind."""

import json
import os
import shlex
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nightjar_ci.cli import main
from nightjar_ci.environments.prepare import PreparedEnvironment
from nightjar_ci.errors import InputError
from nightjar_ci.executors import kubectl
from nightjar_ci.executors.base import Task
from nightjar_ci.executors.kubectl import KubernetesExecutor, read_site
from nightjar_ci.formats.night_folder import read_night
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.resources import Resources
from tests.called import call
from tests.ci.executors.test_kubernetes import check
from tests.ci.jobs import GOOD, make_job, python, write_matrix
from tests.places import FAKES

IMAGE = "image:nightjar/models:cpu"
ENVIRONMENT = PreparedEnvironment(name=IMAGE, kind="image", image="nightjar/models:cpu")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    state = tmp_path / "cluster"
    (state / "nights").mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{FAKES}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_KUBECTL_DIR", str(state))
    monkeypatch.setattr(kubectl, "_POLL_S", 0.01)
    monkeypatch.setattr(kubectl, "_STUCK_POLLS", 3)
    return state


def run(tmp_path: Path, *command: str, **changes: Any) -> Outcome:
    folder = tmp_path / "job"
    folder.mkdir()
    job = make_job(*command, **({"environment": IMAGE, "executor": "kubernetes"} | changes))
    return KubernetesExecutor().run(job, ENVIRONMENT, folder)


def test_a_rung_of_a_bisection_runs_in_its_own_image_with_its_variables(cluster: Path, tmp_path: Path) -> None:
    rung = replace(ENVIRONMENT, variables={"NIGHTJAR_RUNG": "{1}"})
    job = make_job("sh", "-c", "test $NIGHTJAR_RUNG = {{1}}", environment="current", executor="kubernetes")
    assert KubernetesExecutor().run(job, rung, tmp_path).completed
    (made,) = [given for (verb, *_), given in calls(cluster) if verb == "create" and given["kind"] == "JobSet"]
    assert f'"image": "{ENVIRONMENT.image}"' in json.dumps(made)


def calls(cluster: Path) -> list[tuple[list[str], Any]]:
    return [tuple(json.loads(line)) for line in (cluster / "calls.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_night_on_a_cluster_runs_collects_and_judges_and_a_second_one_runs_again(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(tmp_path / "state"))
    commands = {"good": python(GOOD), "bad": ("sh", "-c", "echo no such file; exit 3")}
    matrix = write_matrix(tmp_path / "m.toml", commands, executor="kubernetes", environment=IMAGE)
    for _ in range(2):
        assert call(main, "nightly", matrix, cwd=tmp_path).returncode == 3
    first, second = sorted((tmp_path / "state" / "nights").iterdir())
    for night in (first, second):
        states = {outcome.job: (outcome.state, outcome.exit_code) for outcome in read_night(night).jobs}
        assert states == {"good": ("completed", 0), "bad": ("failed", 3)}
        assert json.loads((night / "jobs" / "good" / "result.json").read_text())["curves"]
        assert (night / "jobs" / "bad" / "stdout.log").read_text() == "no such file\n"
    created = [given for (verb, *_), given in calls(cluster) if verb == "create"]
    sets = [one for one in created if one["kind"] == "JobSet"]
    assert len({one["metadata"]["name"] for one in sets}) == 4
    for one in sets:
        check(one)
    assert list((cluster / "nights").iterdir()) == [], "what came home is removed from the volume"


def test_the_pod_that_hands_the_folder_over_is_valid_and_needs_no_gpu(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import kubernetes_validate

    site = tmp_path / "site.toml"
    site.write_text('[jobset.metadata]\nnamespace = "research"\n[pod.securityContext]\nrunAsUser = 1000\n')
    monkeypatch.setenv("NIGHTJAR_KUBERNETES_OPTIONS", f"--claim mine --cloud gke-tcpx --patch {shlex.quote(str(site))}")
    outcome = run(tmp_path, "true", resources=Resources(nodes=2, gpus_per_task=8))
    assert outcome.state == "completed"
    arguments, pod = next((arguments, given) for arguments, given in calls(cluster) if given and given["kind"] == "Pod")
    kubernetes_validate.validate(pod, "1.31", strict=True)
    assert arguments == ["create", "--namespace=research", "-f", "-"]
    assert pod["spec"]["securityContext"] == {"runAsUser": 1000}
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["volumes"] == [{"name": "nights", "persistentVolumeClaim": {"claimName": "mine"}}]
    assert "nvidia" not in json.dumps({**pod["spec"], "tolerations": []})
    assert (["delete", "--namespace=research", "pod", pod["metadata"]["name"], "--wait=false"], None) in calls(cluster)


@pytest.mark.parametrize(
    ("script", "state", "part"),
    [
        ("sleep 5", "timeout", "still running at timeout_s = 1"),
        ("kill -9 $$", "killed", "killed by SIGKILL"),
        ("exit 127", "failed", "a command was not found"),
    ],
)
def test_how_a_job_ended_is_told_as_on_this_machine(
    cluster: Path, tmp_path: Path, script: str, state: str, part: str
) -> None:
    outcome = run(tmp_path, "sh", "-c", script, timeout_s=1.0)
    assert (outcome.state, part in str(outcome.message)) == (state, True)


def test_of_several_processes_the_error_counts_that_is_not_an_abort_by_another(cluster: Path, tmp_path: Path) -> None:
    script = "[ $JAX_PROCESS_ID = 0 ] && exit 134; exit 5"
    assert run(tmp_path, "sh", "-c", script, resources=Resources(nodes=2)).exit_code == 5


def test_a_server_that_is_silent_for_a_while_costs_no_job(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_KUBECTL_SILENT", "3")
    assert run(tmp_path, "true").state == "completed"
    monkeypatch.setattr(kubectl, "_PATIENCE", 2)
    monkeypatch.setenv("FAKE_KUBECTL_SILENT", "1000")
    (tmp_path / "job").rename(tmp_path / "earlier")
    outcome = run(tmp_path, "true")
    assert (outcome.state, "was refused" in str(outcome.message)) == ("killed", True)


def test_a_pod_that_was_evicted_ends_its_own_job_alone(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = {"exitCode": 137, "reason": "ContainerStatusUnknown", "startedAt": None, "finishedAt": None}
    monkeypatch.setattr(kubectl, "_end_of", lambda pod: ended)
    assert run(tmp_path, "true").state == "killed"
    monkeypatch.setattr(kubectl, "_end_of", lambda pod: {"finishedAt": None})
    (tmp_path / "job").rename(tmp_path / "earlier")
    assert "KeyError" in str(run(tmp_path, "true").message)


def test_links_and_logs_that_a_job_leaves_stay_behind(cluster: Path, tmp_path: Path) -> None:
    script = "mkdir $0/a; echo x > $0/a/file; ln -s /etc/passwd $0/link; ln -s / $0/root; echo false > $0/stdout.log"
    assert run(tmp_path, "sh", "-c", script, "{out}").state == "completed"
    files = {str(path.relative_to(tmp_path / "job")) for path in (tmp_path / "job").rglob("*")}
    assert files == {"a", "a/file", "stdout.log", "stderr.log"}
    assert (tmp_path / "job" / "stdout.log").read_text() == ""


def test_a_folder_that_does_not_fit_on_this_disk_is_told(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=20_000))
    outcome = run(tmp_path, "sh", "-c", "head -c 20000 /dev/zero > $0/much", "{out}")
    assert (outcome.state, "./much does not fit on this disk" in str(outcome.message)) == ("killed", True)


@pytest.mark.parametrize(
    ("variable", "part"),
    [("FAKE_KUBECTL_STUCK", "ImagePullBackOff: no such image"), ("FAKE_KUBECTL_DOWN", "was refused")],
)
def test_a_job_that_cannot_start_says_why_and_leaves_no_jobset(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, part: str
) -> None:
    monkeypatch.setenv(variable, "1")
    outcome = run(tmp_path, "true")
    assert (outcome.state, part in str(outcome.message)) == ("not_started", True)
    assert not [path for path in cluster.iterdir() if path.name.startswith("demo")]


def test_an_interrupted_night_deletes_its_jobsets(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_KUBECTL_STUCK", "1")
    monkeypatch.setattr(kubectl, "_STUCK_POLLS", 10**6)
    stop = threading.Event()
    tasks = [
        Task(make_job("true", id=f"demo-s{seed}", environment=IMAGE), ENVIRONMENT, tmp_path, lambda _: stop.set())
        for seed in range(3)
    ]
    ended: list[Outcome] = []
    KubernetesExecutor().run_many(tasks, lambda _, outcome: ended.append(outcome), stop)
    monkeypatch.setenv("FAKE_KUBECTL_SILENT", "1000")  # nor is a server that is silent meanwhile an outcome
    later = threading.Event()
    threading.Timer(0.5, later.set).start()
    KubernetesExecutor().run_many(tasks, lambda _, outcome: ended.append(outcome), later)
    assert ended == []
    assert not [path for path in cluster.iterdir() if path.name.startswith("demo")]


def test_a_wrong_option_of_the_cluster_is_told() -> None:
    with pytest.raises(InputError, match="'--claims mine' is unknown"):
        read_site(["--claims", "mine"])
    with pytest.raises(InputError, match="invalid choice: 'eqs'"):
        read_site(["--cloud", "eqs"])
