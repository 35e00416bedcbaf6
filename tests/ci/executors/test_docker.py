"""The `docker run` of a job, its failures, and jobs in real containers."""

import io
import json
import os
import subprocess
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nightjar_ci.environments.prepare import PreparedEnvironment
from nightjar_ci.executors import process
from nightjar_ci.executors.docker import DockerExecutor, render_docker_run
from nightjar_ci.formats.outcome import Outcome
from nightjar_ci.formats.resources import Resources
from tests.ci.jobs import make_job
from tests.machine import asks
from tests.places import FAKES

IMAGE = "nightjar/models:cpu"


def test_a_job_is_rendered_as_docker_run() -> None:
    rendered = render_docker_run(
        IMAGE,
        ("nightjar-models", "train", "gpt_tiny", "--out", "/out"),
        name="nightjar-demo-1",
        folder=Path("/nights/n/jobs/demo"),
        user="1000:100",
        variables={"NIGHTJAR_OUT": "/out", "HOME": "/tmp"},
        resources=Resources(memory="8G", cpus_per_task=2),
        options=("--gpus", "all"),
    )
    assert rendered == (
        *("docker", "run", "--rm", "--init", "--name", "nightjar-demo-1", "--pull", "never"),
        *("--user", "1000:100", "--network", "none", "--log-driver", "none"),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", "32768"),
        *("--mount", "type=bind,source=/nights/n/jobs/demo,target=/out"),
        *("--memory", "8g", "--cpus", "2"),
        *("--env", "HOME=/tmp", "--env", "NIGHTJAR_OUT"),
        *("--gpus", "all"),
        *("--entrypoint", "nightjar-models", IMAGE, "train", "gpt_tiny", "--out", "/out"),
    )


def test_gpus_come_with_shared_memory_and_limits_that_nccl_wants_and_pins_replace_a_share() -> None:
    def render(resources: Resources) -> str:
        rendered = render_docker_run(
            IMAGE, ("x",), name="n", folder=Path("/f"), user="0:0", variables={}, resources=resources
        )
        return " ".join(rendered[rendered.index("--mount") + 2 : rendered.index("--entrypoint")])

    assert render(Resources()) == ""
    assert render(Resources(gpus_per_task=2)) == "--gpus 2 --shm-size 8g --ulimit memlock=-1 --ulimit stack=67108864"
    assert "--shm-size 32g" in render(Resources(gpus_per_task=8, shm="32G"))
    assert render(Resources(pinned_cpus="2-3", cpus_per_task=2, shm="1G")) == "--cpuset-cpus 2-3 --shm-size 1g"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    state = tmp_path / "docker"
    state.mkdir()
    monkeypatch.setenv("PATH", f"{FAKES}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_DOCKER_DIR", str(state))
    monkeypatch.setenv("FAKE_DOCKER_IMAGES", IMAGE)
    return state / "calls.jsonl"


def run(tmp_path: Path, *command: str, image: str = IMAGE, **changes: Any) -> Outcome:
    folder = tmp_path / "job"
    folder.mkdir()
    environment = PreparedEnvironment(name=f"image:{image}", kind="image", image=image)
    job = make_job(*command, environment=environment.name, executor="docker", **changes)
    return DockerExecutor().run(job, environment, folder)


def test_a_job_runs_with_its_folder_as_out_and_knows_its_image(tmp_path: Path, calls: Path) -> None:
    outcome = run(tmp_path, "sh", "-c", "echo $NIGHTJAR_IMAGE $NIGHTJAR_OUT > $0/result", "{out}")
    assert (outcome.state, outcome.peak_rss_bytes) == ("completed", None)
    assert (tmp_path / "job" / "result").read_text().split() == [IMAGE, "/out"]
    assert outcome.command[:2] == ("docker", "run")


def test_the_value_of_a_variable_reaches_the_job_and_no_log(tmp_path: Path, calls: Path) -> None:
    outcome = run(tmp_path, "sh", "-c", "echo $TOKEN > $0/token", "{out}", env={"TOKEN": "s3cret"})
    assert (tmp_path / "job" / "token").read_text() == "s3cret\n"
    assert "s3cret" not in outcome.model_dump_json() + calls.read_text()
    assert "TOKEN" in outcome.command


def test_a_folder_that_docker_cannot_mount_is_refused(tmp_path: Path, calls: Path) -> None:
    (tmp_path / "a,readonly").mkdir()
    outcome = run(tmp_path / "a,readonly", "true")
    assert outcome.state == "not_started"
    assert "docker cannot mount a path with a comma" in (outcome.message or "")


def test_an_exit_code_comes_through(tmp_path: Path, calls: Path) -> None:
    outcome = run(tmp_path, "sh", "-c", "exit 7")
    assert (outcome.state, outcome.exit_code) == ("failed", 7)


def test_a_signal_inside_is_a_signal(tmp_path: Path, calls: Path) -> None:
    outcome = run(tmp_path, "sh", "-c", "kill -KILL $$")
    assert (outcome.state, outcome.exit_code, outcome.signal) == ("killed", None, "SIGKILL")


def test_a_timeout_kills_the_container(tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE_S", 1.0)
    outcome = run(tmp_path, "sleep", "60", timeout_s=1)
    asked = [json.loads(line) for line in calls.read_text().splitlines()]
    assert outcome.state == "timeout"
    started = next(one for one in asked if one[0] == "run")
    assert asked[-1] == ["kill", started[started.index("--name") + 1]]


def test_no_unsigned_image_is_pulled_unseen(tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTJAR_PUBLIC_KEY", "cosign.pub")
    outcome = run(tmp_path, "true", image="127.0.0.1:9/me/other:latest")
    assert outcome.state == "not_started"
    assert "'cosign.pub' is not a file" in (outcome.message or "")
    assert [json.loads(line)[0] for line in calls.read_text().splitlines()] == ["image"]


@pytest.mark.parametrize(
    ("command", "image", "variables", "said"),
    [
        ("no-such-command", IMAGE, {}, ["docker could not start 'no-such-command'"]),
        ("true", "nightjar/none:cpu", {}, ["no local image 'nightjar/none:cpu', and pulling", "Hint: `nox -s images`"]),
        ("true", IMAGE, {"FAKE_DOCKER_DOWN": "1"}, ["connect to the Docker daemon", "Hint: start the Docker engine"]),
        ("true", IMAGE, {"PATH": "/no/such"}, ["no docker command on PATH"]),
    ],
    ids=["no command", "no image", "a silent engine", "no docker"],
)
def test_what_docker_cannot_start_is_not_started_and_says_why(
    command: str,
    image: str,
    variables: dict[str, str],
    said: list[str],
    tmp_path: Path,
    calls: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    outcome = run(tmp_path, command, image=image)
    assert outcome.state == "not_started"
    assert [part for part in said if part not in str(outcome.message)] == []


# The real engine.


def shell_and_its_libraries() -> Iterator[Path]:
    for program in ("/bin/sh", "/bin/sleep", "/bin/id"):
        yield Path(program)
        linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        yield from (Path(word) for word in linked.split() if word.startswith("/"))


@pytest.fixture(scope="module")
@asks("docker")
def real_image() -> Iterator[str]:
    """An image with this machine's shell in it: needs a Docker engine, and no registry."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in {*shell_and_its_libraries()}:
            archive.add(path.resolve(), str(path))
    name = f"nightjar-test/shell:{uuid.uuid4().hex[:8]}"
    subprocess.run(["docker", "import", "-", name], input=packed.getvalue(), check=True, capture_output=True)
    yield name
    subprocess.run(["docker", "image", "rm", "--force", name], check=True, capture_output=True)


def test_a_real_container_writes_results_that_belong_to_the_caller(tmp_path: Path, real_image: str) -> None:
    outcome = run(tmp_path, "/bin/sh", "-c", "echo $NIGHTJAR_JOB > /out/result; id -u >&2", image=real_image)
    assert outcome.completed, outcome.message
    result = tmp_path / "job" / "result"
    assert result.read_text() == "demo-s0\n"
    assert result.stat().st_uid == os.getuid()
    assert (tmp_path / "job" / "stderr.log").read_text() == f"{os.getuid()}\n"


@pytest.mark.docker
def test_a_real_container_gets_a_secret_that_no_log_and_no_command_line_shows(
    tmp_path: Path, real_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE_TOKEN", "s3cr3t-value")
    monkeypatch.setenv("GITHUB_TOKEN", "ghp_planted0001")
    script = "export -p; echo ${{#MINE_TOKEN}} >&2"
    outcome = run(tmp_path, "/bin/sh", "-c", script, image=real_image, secrets=("MINE_TOKEN",))
    assert outcome.completed, outcome.message
    assert (tmp_path / "job" / "stderr.log").read_text() == "12\n"
    log = (tmp_path / "job" / "stdout.log").read_text()
    assert "MINE_TOKEN='***'" in log
    assert "planted" not in log
    assert "s3cr3t" not in outcome.model_dump_json()


@pytest.mark.docker
def test_a_real_container_is_gone_after_its_timeout(tmp_path: Path, real_image: str) -> None:
    outcome = run(tmp_path, "/bin/sleep", "60", image=real_image, timeout_s=2)
    assert outcome.state == "timeout"
    name = outcome.command[outcome.command.index("--name") + 1]
    listed = subprocess.run(
        ["docker", "ps", "--all", "--quiet", "--filter", f"name={name}"], capture_output=True, text=True, check=True
    )
    assert listed.stdout == ""


def test_a_command_that_a_real_image_lacks_is_not_started(tmp_path: Path, real_image: str) -> None:
    outcome = run(tmp_path, "no-such-command", image=real_image)
    assert outcome.state == "not_started", outcome.message


def test_a_real_container_that_is_killed_says_so(tmp_path: Path, real_image: str) -> None:
    outcome = run(tmp_path, "/bin/sh", "-c", "kill -KILL $$", image=real_image)
    assert (outcome.state, outcome.signal) == ("killed", "SIGKILL")


def test_a_real_container_keeps_to_its_processor_and_its_shared_memory(tmp_path: Path, real_image: str) -> None:
    last = str(max(os.sched_getaffinity(0)))
    text = (
        "while read -r key value; do case $key in Cpus_allowed_list:) echo $value;; esac; done < /proc/self/status;"
        "while read -r _ where _ how _; do case $where in /dev/shm) echo $how;; esac; done < /proc/mounts"
    )
    wanted = Resources(pinned_cpus=last, shm="32M")
    outcome = run(tmp_path, "/bin/sh", "-c", text, image=real_image, resources=wanted)
    assert outcome.completed, outcome.message
    cpus, shm = (tmp_path / "job" / "stdout.log").read_text().splitlines()
    assert cpus == last
    assert "size=32768k" in shm


def test_the_peak_memory_of_a_real_container_is_that_of_its_largest_process(tmp_path: Path, real_image: str) -> None:
    grow = (
        "x=0123456789abcdef; for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21; do x=$x$x; done; sleep 3"
    )
    outcome = run(tmp_path, "/bin/sh", "-c", grow, image=real_image)
    assert outcome.completed, outcome.message
    assert outcome.peak_rss_bytes is not None
    assert outcome.peak_rss_bytes > 32e6  # 16 bytes, doubled 21 times
