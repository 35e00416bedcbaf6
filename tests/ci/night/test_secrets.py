"""Secrets stay home: planted values are nowhere in a night, a site, a batch script or a bisection."""

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from nightjar_ci.cli import main
from nightjar_ci.errors import InputError
from nightjar_ci.formats.night_folder import read_night
from nightjar_ci.night.matrix import expand, read_matrix
from nightjar_ci.night.run_job import run_job
from tests.ci.bisect.test_command import rungs
from tests.ci.jobs import RESULT, make_job, python, wait_for
from tests.places import FAKES
from tests.stand_ins import put_on_path

IMAGE = "nightjar/models:cpu"
NEEDED = "hf_n33ded/Value+42"  # its URL-quoted form is another
KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END KEY-----"
PLANTED = {
    "GITHUB_TOKEN": "ghp_planted0001",
    "NIGHTJAR_REGISTRY_PASSWORD": "planted0002",
    "AWS_SECRET_ACCESS_KEY": "planted0003",
    "JAX_API_KEY": "planted0004",
    "HTTPS_PROXY": "http://me:planted0005@proxy.example:3128",
    "SOMETHING": "planted0006",
}
# Everything a careless program does with its secrets.
SPILL = f"""
import base64, json, os, pathlib, sys, urllib.parse
out, token, key = pathlib.Path(os.environ["NIGHTJAR_OUT"]), os.environ["HF_TOKEN"], os.environ["DEPLOY_KEY"]
print(dict(os.environ), base64.b64encode(repr(os.environ).encode()).decode(), urllib.parse.quote(token, safe=""))
print("using", token, key.splitlines()[1], base64.encodebytes(f"user:{{token}}".encode() * 9).decode(), file=sys.stderr)
(out / "environ.json").write_text(json.dumps(dict(os.environ)))
(out / "state.bin").write_bytes(b"\\0\\1" + token.encode() + b"\\0")
(out / f"cache-{{token[:3]}}").mkdir()
result = json.loads({RESULT!r})
result["environment"]["cpu"]["model"] = token
(out / "result.json").write_text(json.dumps(result))
if sys.argv[1:]:
    raise ValueError("401 for " + token)
"""


def spellings(value: str) -> list[bytes]:
    encoded = base64.b64encode(value.encode()).rstrip(b"=")[:-1]
    lines = [line.encode() for line in value.splitlines()]
    return [value.encode(), quote(value, safe="").encode(), encoded, *lines]


def holding(folder: Path, *values: str) -> list[str]:
    """The files in a folder that hold a value, in their name or contents."""
    forms = [form for value in values for form in spellings(value)]
    return [
        str(path)
        for path in folder.rglob("*")
        if any(form in os.fsencode(path.name) or (path.is_file() and form in path.read_bytes()) for form in forms)
    ]


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a project, entered; the caller's environment holds secrets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(tmp_path / "state"))
    for name, value in {**PLANTED, "HF_TOKEN": NEEDED, "DEPLOY_KEY": KEY}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "policies.toml").write_text('schema = "nightjar.policies/1"\n')
    return tmp_path


def write(folder: Path, *jobs: str) -> Path:
    entries = "".join(f"[[job]]\n{job}\n" for job in jobs)
    (folder / "matrix.toml").write_text(f'schema = "nightjar.matrix/1"\nname = "leak"\n{entries}')
    return folder / "matrix.toml"


def spilling(name: str, *arguments: str) -> str:
    command = json.dumps([*python(SPILL), *arguments])
    return f'name = "{name}"\nseeds = [0]\ntimeout_s = 60\ncommand = {command}\nsecrets = ["HF_TOKEN", "DEPLOY_KEY"]'


def nightjar(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*map(str, arguments)])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_job_that_prints_its_environment_leaks_nothing(planted: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(planted, 'name = "leak"\ncommand = ["sh", "-c", "env | sort"]')
    night = planted / "night"
    assert nightjar("run", "matrix.toml", "--out", night) == 3  # it leaves no result
    log = (night / "jobs" / "leak" / "stdout.log").read_text()
    assert {"PATH", "HOME", "NIGHTJAR_JOB"} <= {line.partition("=")[0] for line in log.splitlines()}
    assert not set(PLANTED) & {line.partition("=")[0] for line in log.splitlines()}
    assert holding(planted, "planted000", NEEDED, KEY) == []


def test_secrets_reach_their_job_and_no_night_store_or_site(planted: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(planted, spilling("demo"), spilling("fails", "1"))
    night = planted / "night"
    assert nightjar("run", "matrix.toml", "--out", night) == 3
    nightjar("gate", night, "--policies", "policies.toml")
    nightjar("report", night, "--policies", "policies.toml")
    assert nightjar("site", "--out", planted / "site") == 0
    completed, failed = read_night(night).jobs
    assert (completed.state, failed.state) == ("completed", "failed")
    assert "ValueError: 401 for ***" in (failed.message or "")
    assert "'HF_TOKEN': '***'" in (night / "jobs" / "demo-s0" / "stdout.log").read_text()
    assert json.loads((night / "jobs" / "demo-s0" / "environ.json").read_text())["HF_TOKEN"] == "***"
    assert (night / "report.html").exists()
    assert (planted / "site" / "index.html").exists()
    assert holding(planted, "planted000", NEEDED, KEY) == []
    shown = capfd.readouterr()
    assert not [form for form in (*spellings(NEEDED), *spellings(KEY)) if form in (shown.out + shown.err).encode()]


def test_a_missing_secret_is_named_and_the_other_jobs_go_on(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHORT", "abc")
    good = f"command = {json.dumps(python(SPILL))}\nseeds = [0]"
    write(
        planted,
        f'name = "without"\n{good}\nsecrets = ["NO_SUCH_TOKEN"]',
        f'name = "short"\n{good}\nsecrets = ["SHORT"]',
        f'name = "demo"\n{good}\nsecrets = ["HF_TOKEN", "DEPLOY_KEY"]',
    )
    assert nightjar("run", "matrix.toml", "--out", planted / "night") == 3
    without, short, demo = read_night(planted / "night").jobs
    assert (without.state, short.state, demo.state) == ("not_started", "not_started", "completed")
    assert "the secret NO_SUCH_TOKEN is not set" in (without.message or "")
    assert "the secret SHORT has 3 characters: expected at least 4" in (short.message or "")


def test_plans_name_secrets_and_show_no_value(planted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(planted, spilling("demo"))
    for options in ((), ("--json",)):
        assert nightjar("run", "matrix.toml", "--dry-run", *options) == 0
        out = capsys.readouterr().out
        assert "HF_TOKEN" in out
        assert NEEDED not in out
    assert nightjar("render", "slurm", "matrix.toml", "demo-s0") == 0
    assert NEEDED not in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_job_leaves_no_secret_in_its_log(planted: Path, number: int) -> None:
    hang = python("import os, time; print(os.environ['HF_TOKEN'], flush=True); time.sleep(60)")
    write(planted, f'name = "demo"\ncommand = {json.dumps(hang)}\nsecrets = ["HF_TOKEN"]')
    log = planted / "night" / "jobs" / "demo" / "stdout.log"
    command = [sys.executable, "-m", "nightjar_ci", "run", "matrix.toml", "--out", "night"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: log.exists() and log.read_text().endswith("\n"))
    assert NEEDED not in log.read_text()
    running.send_signal(number)
    running.wait(timeout=60)
    assert log.read_text() == "***\n"
    assert holding(planted / "night", NEEDED) == []


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('pass_env = ["GITHUB_TOKEN"]', "GITHUB_TOKEN looks like a secret: name it in 'secrets'"),
        ('pass_env = ["*"]', "expected the name of a variable"),
        ('secrets = ["HF_*"]', "expected the name of an environment variable"),
        ('secrets = ["hf_value=1"]', "expected the name of an environment variable"),
        ('secrets = ["HF_TOKEN"]\nenv = { HF_TOKEN = "x" }', "'HF_TOKEN' is in 'env' and in 'secrets'"),
    ],
)
def test_a_mistake_in_the_names_is_told_when_the_matrix_is_read(planted: Path, lines: str, said: str) -> None:
    with pytest.raises(InputError, match=said.replace("*", r"\*")):
        read_matrix(write(planted, f'name = "a"\ncommand = ["true"]\n{lines}'))


def test_names_of_the_defaults_and_of_the_job_are_put_together(planted: Path) -> None:
    (planted / "matrix.toml").write_text(
        'schema = "nightjar.matrix/1"\nname = "m"\n[defaults]\npass_env = ["A"]\nsecrets = ["T"]\n'
        '[[job]]\nname = "a"\ncommand = ["true"]\npass_env = ["B_*"]\nsecrets = ["U", "T"]\n'
    )
    (job,) = expand(read_matrix(planted / "matrix.toml"))
    assert (job.pass_env, job.secrets) == (("A", "B_*"), ("T", "U"))


def test_a_container_gets_secrets_by_name_and_nothing_else(planted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (planted / "docker").mkdir()
    monkeypatch.setenv("PATH", f"{FAKES}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_DOCKER_DIR", str(planted / "docker"))
    monkeypatch.setenv("FAKE_DOCKER_IMAGES", IMAGE)
    monkeypatch.setenv("MYLAB_DATA", "/data")
    script = "env >$0/environ; test ${{#HF_TOKEN}} = 18 && echo $HF_TOKEN"
    job = make_job(
        *("sh", "-c", script, "{out}"), environment=f"image:{IMAGE}", executor="docker",
        pass_env=("MYLAB_*",), secrets=("HF_TOKEN",), kind="profile",
    )  # fmt: skip
    outcome = run_job(job, planted / "job")
    assert "exit code 0" in (outcome.message or "")  # it has no capture
    calls = (planted / "docker" / "calls.jsonl").read_text()
    assert '"--env", "HF_TOKEN"' in calls
    seen = dict(line.split("=", 1) for line in (planted / "job" / "environ").read_text().splitlines())
    assert (seen["HF_TOKEN"], seen["MYLAB_DATA"]) == ("***", "/data")
    assert not set(PLANTED) & set(seen)
    assert holding(planted, "planted000", NEEDED) == []


@pytest.fixture
def cluster(planted: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands, of which sbatch runs its script at once; the folder where it leaves script and environment."""
    seen = planted / "seen"
    seen.mkdir()
    programs = {
        "sbatch": f'cat >{seen}/script; env >{seen}/environ; echo "$@" >{seen}/options; bash {seen}/script >&2; echo 7',
        "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
        "squeue": f"[ -e {seen}/runs ] && echo '7|RUNNING|0:01|n1|None' || {{ echo 'Invalid job id' >&2; exit 1; }}",
        "scontrol": "echo 'AccountingStorageType = (null)'",
        "sinfo": "true",
        "scancel": "true",
    }
    put_on_path(monkeypatch, planted / "bin", {name: f"#!/bin/bash\n{text}\n" for name, text in programs.items()})
    return seen


def test_a_batch_gets_the_allowed_variables_and_its_secrets_and_no_script_holds_one(
    planted: Path, cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_ACCOUNT", "ml")
    monkeypatch.setenv("SBATCH_EXPORT", "NONE")
    write(planted, spilling("demo") + '\nexecutor = "slurm"')
    assert nightjar("run", "matrix.toml", "--out", planted / "night") == 0
    environ = (cluster / "environ").read_text()
    assert f"HF_TOKEN={NEEDED}" in environ
    assert "SBATCH_ACCOUNT=ml" in environ
    assert "SBATCH_EXPORT" not in environ
    assert "planted" not in environ.replace(str(planted), "")
    for text in ((cluster / "script").read_text(), (cluster / "options").read_text()):
        assert not [form for form in (*spellings(NEEDED), *spellings(KEY)) if form in text.encode()]
    assert "'HF_TOKEN': '***'" in (planted / "night" / "jobs" / "demo-s0" / "stdout.log").read_text()
    assert holding(planted / "night", "planted000", NEEDED, KEY) == []


def test_a_cancelled_batch_leaves_no_secret_in_its_log(planted: Path, cluster: Path) -> None:
    (cluster / "runs").touch()
    write(planted, spilling("demo") + '\nexecutor = "slurm"')
    job = planted / "night" / "jobs" / "demo-s0"
    command = [sys.executable, "-m", "nightjar_ci", "run", "matrix.toml", "--out", "night"]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for((job / "slurm.json").exists)
    assert NEEDED in (job / "stdout.log").read_text()
    running.send_signal(signal.SIGTERM)
    running.wait(timeout=60)
    assert "***" in (job / "stdout.log").read_text()
    assert holding(planted / "night", NEEDED, KEY) == []


BISECTED = """
import os, sys
print(dict(os.environ), file=sys.stderr)
assert os.environ["HF_TOKEN"].endswith("Value+42")
sys.exit(int(os.environ["NIGHTJAR_RUNG"][1:]) >= 3)
"""


def test_a_bisection_inherits_what_a_job_does_and_masks_what_is_named(
    planted: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (planted / "test.py").write_text(BISECTED)
    prepare = "sh -c 'env >&2; env >{folder}/seen'"
    options = ("--rungs", rungs(planted, 6), "--deterministic", "--secret", "HF_TOKEN", "--prepare", prepare)
    assert nightjar("bisect", *options, "--", sys.executable, "test.py") == 0
    seen = next((planted / "state").glob("bisections/*/stage0/*/seen")).read_text()
    assert "HF_TOKEN=***" in seen
    assert not set(PLANTED) & {line.partition("=")[0] for line in seen.splitlines()}
    assert holding(planted / "state", "planted000", NEEDED) == []
    shown = capfd.readouterr()
    assert NEEDED not in shown.out + shown.err
    assert nightjar("bisect", *options[:-2], "--secret", "NO_SUCH", "--", sys.executable, "test.py") == 2
    assert "the secret NO_SUCH is not set" in capfd.readouterr().err
