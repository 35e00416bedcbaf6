"""The hook and the command around it, with a JAX that is a fake: what is started, stopped, passed through and said."""

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from nightjar_profiling.capture.launch import HOOK, find_lost_stacks, render_environment, run
from nightjar_profiling.capture.session import describe_machine, find_flags, find_page_faults
from nightjar_profiling.commands.capture import parse_steps
from nightjar_profiling.errors import InputError
from tests.profiling.conftest import Run

STEPS = """
import jax
for number in range(5):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        jax.compute()
"""


def test_tracing_starts_at_the_first_step_and_stops_after_the_last(run_command: Run, variables: dict[str, str]) -> None:
    done = run_command("capture", "--steps", "1:2", "--", sys.executable, "-c", STEPS, **variables)
    events = done.stdout.split()[:-1]
    one = ["enter", "exit"]
    assert events == [*one, "start", *one, *one, "stop", *one, *one]
    assert done.returncode == 0
    assert "waited" in done.stderr


def test_what_a_capture_leaves(run_command: Run, variables: dict[str, str], tmp_path: Path) -> None:
    done = run_command("capture", "--steps", "1:2", "--out", "c", "--", sys.executable, "-c", STEPS, **variables)
    folder = tmp_path / "c"
    assert done.stdout.splitlines()[-1] == str(folder / "report.html")
    assert sorted(path.name for path in folder.iterdir() if path.name != "sources") == [
        "flamegraph.json", "manifest.json", "profile.json", "raw", "report.html", "tables",
    ]  # fmt: skip
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["exit_code"], manifest["steps"], manifest["raw"]) == (0, [1, 2], ["raw/rank0000.xplane.pb"])
    assert manifest["environment"]["cwd"] == str(tmp_path)
    assert manifest["environment"]["machine"]["host"] == platform.node()
    raw = ["rank0000.host", "rank0000.sources", "rank0000.xplane.pb"]
    assert sorted(path.name for path in (folder / "raw").iterdir()) == raw
    assert json.loads((folder / "profile.json").read_text())["device_time_ns"] == 100


FAULTS = """
import jax, mmap
for number in (0, 2, 1, 2, 3):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        jax.compute()
        for again in range(20):
            with mmap.mmap(-1, 16 << 20) as memory:
                for page in range(0, len(memory), 4096):
                    memory[page] = 1
"""


def test_use_of_the_process_while_traced_is_noted(run_command: Run, variables: dict[str, str], tmp_path: Path) -> None:
    run_command("capture", "--steps", "1:2", "--out", "c", "--", sys.executable, "-c", FAULTS, **variables)
    usage = json.loads((tmp_path / "c" / "manifest.json").read_text())["environment"]["usage"]
    assert (usage["steps"], usage["compiles"]) == (1, 0)
    assert 20 * 8 < usage["page_faults"] < 1.5 * 20 * 4096  # of huge pages 8 in each piece, of small ones 4,096
    assert 0 < usage["user_s"] + usage["system_s"] < 2 * usage["elapsed_s"]


USAGE = {"elapsed_s": 1.0, "user_s": 1.0, "system_s": 0.5, "page_faults": 4000, "steps": 2, "compiles": 0}
TRACED = {"devices": ["cpu"], "usage": USAGE}


def test_many_page_faults_of_steps_on_a_cpu_are_a_warning() -> None:
    (said,) = find_page_faults(TRACED, {"HOME": "/root"})
    assert "33% of the CPU time" in said
    assert "2,000 page faults" in said


@pytest.mark.parametrize(
    "traced",
    [
        {},
        {"devices": ["cpu"]},
        {**TRACED, "devices": ["NVIDIA H100"]},
        *({**TRACED, "usage": {**USAGE, **one}} for one in ({"steps": 5}, {"steps": 0}, {"system_s": 0.05})),
        {**TRACED, "usage": {**USAGE, "compiles": 1}},
    ],
)
def test_few_page_faults_and_those_of_a_compiler_are_none(traced: dict[str, Any]) -> None:
    assert find_page_faults(traced, {}) == []


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_who_sets_malloc_is_told_nothing_of_it(name: str) -> None:
    assert find_page_faults(TRACED, {name: "1"}) == []


def test_without_steps_the_trace_begins_at_the_first_use_of_jax(run_command: Run, variables: dict[str, str]) -> None:
    program = "import jax; print('configure'); jax.compute(); print('compute', flush=True)"
    done = run_command("capture", "--", sys.executable, "-c", program, **variables)
    assert done.stdout.split()[:-1] == ["configure", "start", "compute", "stop"]


def test_a_trace_of_some_seconds_ends_before_the_program(
    run_command: Run, variables: dict[str, str], tmp_path: Path
) -> None:
    program = "import jax, time; jax.compute(); time.sleep(3); print('after', flush=True)"
    done = run_command("capture", "--for", "0.2", "--out", "c", "--", sys.executable, "-c", program, **variables)
    assert done.stdout.split()[:-1] == ["start", "stop", "after"]
    (warning,) = json.loads((tmp_path / "c" / "manifest.json").read_text())["warnings"]
    assert "the trace ended after 0.2 s, as asked, and the program ran on" in warning
    done = run_command("capture", "--for", "9", "--out", "d", "--", sys.executable, "-c", STEPS, **variables)
    assert json.loads((tmp_path / "d" / "manifest.json").read_text())["warnings"] == []
    refused = run_command("capture", "--for", "1", "--steps", "1:2", "--", sys.executable, "-c", program, **variables)
    assert (refused.returncode, "--for: expected without --steps" in refused.stderr) == (2, True)


def test_the_folder_of_the_job_is_the_default(run_command: Run, variables: dict[str, str], tmp_path: Path) -> None:
    out = {"NIGHTJAR_OUT": str(tmp_path / "job")}
    done = run_command("capture", "--json", "--", sys.executable, "-c", STEPS, **variables, **out)
    assert json.loads(done.stdout.splitlines()[-1])["schema"] == "nightjar.profile/1"
    assert (tmp_path / "job" / "capture" / "report.html").is_file()


def test_unnumbered_steps_are_counted_and_a_range_that_ends_early_is_said(
    run_command: Run, variables: dict[str, str]
) -> None:
    program = STEPS.replace(", step_num=number", "")
    done = run_command("capture", "--steps", "3:9", "--", sys.executable, "-c", program, **variables)
    assert done.stdout.split()[6:-1] == ["start", "enter", "exit", "enter", "exit", "stop"]
    assert "Steps 3 to 9 were asked for, 3 to 4 traced" in done.stderr


def test_a_trace_of_the_program_itself_goes_first(run_command: Run, variables: dict[str, str], tmp_path: Path) -> None:
    program = f"import jax; jax.compute(); jax.profiler.start_trace({str(tmp_path / 'own')!r}); print('own')"
    done = run_command("capture", "--", sys.executable, "-c", program, **variables)
    assert done.stdout.split()[:-1] == ["start", "stop", "start", "own"]
    assert "the program started a trace of its own" in done.stderr
    assert done.returncode == 0


def test_a_failing_program_keeps_code_and_capture(run_command: Run, variables: dict[str, str], tmp_path: Path) -> None:
    done = run_command("capture", "--", sys.executable, "-c", f"{STEPS}\nraise SystemExit(7)", **variables)
    assert done.returncode == 7
    assert "The program failed (exit code 7)" in (tmp_path / "capture" / "report.html").read_text()
    assert json.loads((tmp_path / "capture" / "manifest.json").read_text())["exit_code"] == 7


@pytest.mark.parametrize(
    ("program", "arguments", "exit_code", "message"),
    [
        (STEPS, ("--steps", "10:12"), 4, "ran steps 0 to 4: steps 10 to 12 never occurred.\nHint: choose from 0:4"),
        ("import jax", ("--steps", "1:2"), 4, "has no jax.profiler.StepTraceAnnotation"),
        ("import jax", (), 4, "never used a device"),
        ("print(1)", (), 4, "never imported jax.profiler"),
        ("import os; os.kill(os.getpid(), 9)", (), 137, "was ended by SIGKILL before it left a trace"),
        (f"{STEPS}\nimport os; os.kill(os.getpid(), 9)", (), 137, "SIGKILL"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGABRT)", (), 134, "was ended by SIGABRT"),
        ("raise SystemExit(5)", (), 5, "ended with exit code 5 before anything was traced"),
    ],
)
def test_why_nothing_was_captured(
    run_command: Run, variables: dict[str, str], program: str, arguments: tuple[str, ...], exit_code: int, message: str
) -> None:
    done = run_command("capture", *arguments, "--", sys.executable, "-c", program, **variables)
    assert message in done.stderr
    assert done.returncode == exit_code
    assert "Traceback" not in done.stderr


def test_a_killed_program_keeps_what_was_captured_before(run_command: Run, variables: dict[str, str]) -> None:
    program = f"{STEPS}\nimport os; os.kill(os.getpid(), 9)"
    done = run_command("capture", "--steps", "1:1", "--", sys.executable, "-c", program, **variables)
    assert done.stdout.splitlines()[-1].endswith("report.html")
    assert "The program failed (SIGKILL)" in done.stderr
    assert done.returncode == 128 + 9


def test_a_trace_that_does_not_start_leaves_the_program_alone(run_command: Run, variables: dict[str, str]) -> None:
    program = f"import jax\njax.profiler.folder = 'busy'\n{STEPS}\nprint('done')"
    done = run_command("capture", "--", sys.executable, "-c", program, **variables)
    assert "done" in done.stdout
    assert "the trace did not start: already started" in done.stderr
    assert done.returncode == 3


OLD_PROFILER = """
from types import SimpleNamespace
del ProfileOptions
def start_trace(log_dir): raise RuntimeError("records every call of Python")
def stop_trace(): raise RuntimeError("no trace")
class Session:
    def __init__(self, options): print("start", options.python_tracer_level, flush=True)
    def stop(self): print("stop", flush=True); return b"trace"
    def export(self, trace, folder):
        assert trace == b"trace"
        made = pathlib.Path(folder, "plugins", "profile", "now")
        made.mkdir(parents=True)
        shutil.copyfile(os.environ["FAKE_TRACE"], made / "host.xplane.pb")
xla_client = SimpleNamespace(profiler=SimpleNamespace(ProfileOptions=SimpleNamespace, ProfilerSession=Session))
"""


def test_a_jax_whose_trace_takes_no_options_is_traced_with_the_options_of_jaxlib(
    run_command: Run, variables: dict[str, str], fake_jax: Path
) -> None:
    with (fake_jax / "jax" / "profiler.py").open("a", encoding="utf-8") as file:
        file.write(OLD_PROFILER)
    done = run_command("capture", "--steps", "1:2", "--", sys.executable, "-c", STEPS, **variables)
    one = ["enter", "exit"]
    assert done.stdout.split()[:-1] == [*one, "start", "0", *one, *one, "stop", *one, *one]
    assert done.returncode == 0


@pytest.mark.parametrize(("version", "level"), [((0, 6, 1), 2), ((0, 8, 0), 2), ((0, 8, 1), 1)])
def test_cpu_thunks_are_recorded_at_the_level_that_a_release_needs(
    run_command: Run, variables: dict[str, str], fake_jax: Path, version: tuple[int, ...], level: int
) -> None:
    with (fake_jax / "jax" / "__init__.py").open("a", encoding="utf-8") as file:
        file.write(f"__version_info__ = {version}\n")
    with (fake_jax / "jax" / "profiler.py").open("a", encoding="utf-8") as file:
        file.write(
            "def start_trace(_, profiler_options): raise ValueError(f'level {profiler_options.host_tracer_level}')\n"
        )
    done = run_command("capture", "--", sys.executable, "-c", STEPS, **variables)
    assert f"the trace did not start: level {level}" in done.stderr


def test_a_program_without_jax_meets_no_jax_and_its_own_sitecustomize(run_command: Run, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import builtins; builtins.ran = 'mine'\n")
    program = "import sys, sitecustomize; print(ran, 'jax' in sys.modules, sitecustomize.__file__)"
    command = [sys.executable, "-c", program]
    done = run_command("capture", "--", *command, PYTHONPATH=str(tmp_path / "site"))
    assert done.stdout.split() == ["mine", "False", str(tmp_path / "site" / "sitecustomize.py")]


def test_the_users_variables_win() -> None:
    environ = {"XLA_FLAGS": "--a", "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0", "PYTHONPATH": "/mine"}
    found = render_environment(environ, Path("/out/raw"), (3, 5))
    assert found["XLA_FLAGS"] == "--a"
    assert found["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] == "0"
    assert found["JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS"] == "1"
    assert found["PYTHONPATH"].split(os.pathsep) == [str(HOOK), "/mine"]
    assert render_environment({}, Path("/out/raw"), None)["PYTHONPATH"] == str(HOOK)
    assert len(find_lost_stacks(environ)) == 1
    assert find_lost_stacks({"JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS": "false"}) != []
    assert find_lost_stacks({}) == []


def test_settings_are_recorded_and_secrets_are_not() -> None:
    kept = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_LAUNCH_BLOCKING": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    kept |= {"JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY": "1", "NCCL_DEBUG": "INFO"}
    left = {
        "JAX_SERVICE_TOKEN": "x",
        "NCCL_PASSWORD": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "CUDA_API_KEY": "x",
        "HOME": "/",
    }
    assert find_flags(kept | left) == kept


@pytest.mark.parametrize(
    ("version", "driver"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n", "570.86.15"),
        ("something else", None),
        (None, None),
    ],
)
def test_the_machine_is_described_as_far_as_it_tells(tmp_path: Path, version: str | None, driver: str | None) -> None:
    (tmp_path / "proc" / "driver" / "nvidia").mkdir(parents=True)
    (tmp_path / "proc" / "cpuinfo").write_text("processor : 0\nmodel name : A Fast One\nflags : x\n")
    if version is not None:
        (tmp_path / "proc" / "driver" / "nvidia" / "version").write_text(version)
    found = describe_machine(tmp_path)
    assert found.pop("host") == platform.node()
    assert found == {"cpu": "A Fast One"} | ({} if driver is None else {"driver": driver})


def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match=r"cannot run 'train\.py'.*Hint: .*-- python train\.py"):
        run(["train.py"], os.environ)


@pytest.mark.parametrize(("own", "expected"), [(0, 3), (7, 7)])
def test_a_file_that_cannot_be_written_does_not_hide_the_exit_code_of_the_program(
    run_command: Run, variables: dict[str, str], own: int, expected: int
) -> None:
    program = f"{STEPS}\nimport os; open(os.environ['NIGHTJAR_CAPTURE_RAW'] + '/../tables', 'w').close()"
    program += f"\nraise SystemExit({own})"
    done = run_command("capture", "--out", "c", "--", sys.executable, "-c", program, **variables)
    assert done.returncode == expected, done.stderr
    assert "/tables: File exists." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("text", "steps"), [("3:5", (3, 5)), ("4", (4, 4)), (None, None)])
def test_steps_are_parsed(text: str | None, steps: tuple[int, int] | None) -> None:
    assert parse_steps(text) == steps


@pytest.mark.parametrize("text", ["", "a:b", "5:3", "-1:2", "1:2:3", "1.5"])
def test_steps_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--steps"):
        parse_steps(text)
