"""The doctor names each mismatch with its fix, and is silent where nothing is wrong: made-up machines, and this one."""

import json
import subprocess
import sys
import venv
from dataclasses import replace
from pathlib import Path
from typing import Never

import pytest
from typer.testing import CliRunner

from nightjar_models.cli import app
from nightjar_models.doctor import gather
from nightjar_models.doctor.checks import MEM_FRACTIONS, Finding, judge_facts
from nightjar_models.doctor.cli import doctor
from nightjar_models.doctor.facts import Facts, Gpu, Library, Version
from nightjar_models.doctor.gather import find_shadowing, make_library, parse_nvidia_smi, run_probe
from nightjar_models.doctor.probe import split_number
from nightjar_models.doctor.report import render_json, render_report
from nightjar_models.errors import InputError

MODELS = Path(gather.__file__).parents[2]
H100 = Gpu(name="NVIDIA H100", capability=(9, 0), memory_mib=81559, used_mib=3)
CUDNN = Library(
    name="cuDNN",
    compiled=(9, 8),
    required=(9, 8),
    loaded=(9, 12, 0),
    path="/x/libcudnn.so.9",
    package="nvidia-cudnn-cu12",
)
HEALTHY = Facts(
    python="3.13.5",
    platform="linux-x86_64",
    driver=(580, 65, 6),
    gpus=(H100, H100),
    packages={
        "jax": "0.12.0",
        "jaxlib": "0.12.0",
        "jax-cuda12-plugin": "0.12.0",
        "jax-cuda12-pjrt": "0.12.0",
        "nvidia-cudnn-cu12": "9.12.0",
        "transformer-engine-cu12": "2.9",
    },
    backend="gpu",
    devices=("NVIDIA H100", "NVIDIA H100"),
    libraries=(CUDNN,),
    shm_bytes=2**33,
    container=True,
)

ON_CPU = replace(HEALTHY, backend="cpu", devices=("cpu",))
ABSENT = replace(HEALTHY, packages={}, libraries=())
CRASHING = replace(HEALTHY, packages={"jax": "0.10.2", "jaxlib": "0.10.2"}, gpus=(), backend="cpu")


def with_packages(**versions: str) -> Facts:
    return replace(HEALTHY, packages={**HEALTHY.packages, **{k.replace("_", "-"): v for k, v in versions.items()}})


def only(facts: Facts) -> Finding:
    (finding,) = judge_facts(facts)
    return finding


def test_nothing_is_said_of_a_healthy_machine() -> None:
    assert judge_facts(HEALTHY) == ()
    assert judge_facts(replace(CRASHING, platform="linux-aarch64")) == ()
    assert all(said in render_report(HEALTHY, ()) for said in ("/dev/shm   8192 MiB", "Nothing is wrong."))


@pytest.mark.parametrize(
    ("facts", "level", "found", "fix"),
    [
        (
            replace(HEALTHY, libraries=(replace(CUDNN, loaded=(9, 1, 0)),)),
            "error",
            "cuDNN 9.1.0 is loaded (/x/libcudnn.so.9), older than 9.8 that this JAX needs",
            "pip install --upgrade nvidia-cudnn-cu12",
        ),
        (
            replace(HEALTHY, libraries=(replace(CUDNN, required=(9, 1), loaded=(9, 5)),)),
            "warning",
            "older than 9.8 that JAX was compiled against",
            "pip install --upgrade nvidia-cudnn-cu12",
        ),
        (
            replace(HEALTHY, libraries=(replace(CUDNN, loaded=None, error="libcudnn.so.9: no such file"),)),
            "error",
            "cuDNN cannot be loaded: libcudnn.so.9",
            "nvidia-cudnn-cu12",
        ),
        (replace(HEALTHY, driver=(470, 82, 1)), "error", "driver 470.82.1 is older than 525", "to 525"),
        (with_packages(nvidia_nccl_cu13="2.28"), "error", "CUDA 13: nvidia-nccl-cu13", "uninstall nvidia-nccl-cu13"),
        (with_packages(nvidia_dali_cuda130="2.0"), "error", "nvidia-dali-cuda130", "pip uninstall nvidia-dali-cuda130"),
        (
            replace(CRASHING, python="3.11.7"),
            "warning",
            "jaxlib 0.10.2 on x86: programs with arrays of seven or more dimensions can end with SIGSEGV (jax-ml/jax#3",
            "use Python 3.12 or newer",
        ),
        (replace(CRASHING, python="3.12.1"), "warning", "jaxlib 0.10.2 on x86", "pip install --upgrade jax"),
        (
            replace(HEALTHY, backend="cpu", devices=("cpu",)),
            "error",
            "cpu though there are 2 GPUs",
            "JAX's own warning",
        ),
        (
            replace(HEALTHY, backend="cpu", devices=("cpu",), environ={"JAX_PLATFORMS": "cpu"}),
            "warning",
            "JAX_PLATFORMS='cpu'",
            "unset JAX_PLATFORMS",
        ),
        (replace(HEALTHY, devices=("NVIDIA H100",)), "warning", "JAX sees 1 of 2 GPUs", "CUDA_VISIBLE_DEVICES"),
        (replace(HEALTHY, gpus=(), driver=None), "note", "no GPU is seen here", "--gpus all"),
        (
            replace(HEALTHY, gpus=(replace(H100, used_mib=60000), H100)),
            "warning",
            "GPU 0 has 60000 of 81559 MiB in use",
            "XLA_PYTHON_CLIENT_PREALLOCATE=false",
        ),
        (
            replace(HEALTHY, environ={"XLA_CLIENT_MEM_FRACTION": ".9", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".9"}),
            "error",
            "are both set: JAX does not start",
            "unset XLA_PYTHON_CLIENT_MEM_FRACTION",
        ),
        (
            replace(HEALTHY, hidden=("flax 0.12.12 (/a) hides 0.12.10 (/b)",)),
            "warning",
            "flax 0.12.12 (/a) hides 0.12.10 (/b)",
            "unset PYTHONPATH",
        ),
        (replace(HEALTHY, failures={"jax": "ImportError: x"}), "error", "jax: ImportError: x", "pip install"),
        (replace(ABSENT, failures={"jax": "x"}, container=False), "error", "JAX is not installed", "pip install jax,"),
        (replace(ABSENT, failures={"jax": "x"}), "error", "JAX is not installed", "use the image jax"),
        (with_packages(jax="0.11.9"), "error", "jax 0.11.9 beside the newer jaxlib 0.12.0", "install jax==0.12.0"),
        (replace(HEALTHY, shadowing=tuple("abcd")), "warning", "LD_LIBRARY_PATH puts a, b, c, d before", "unset LD_"),
        (replace(HEALTHY, shadowing=tuple("abcde")), "warning", "a, b, c, d and 1 more before", "unset LD_"),
        *(
            (replace(HEALTHY, environ={name: text}), "error", f"{name} is '{text}', expected", f"unset {name}")
            for name in MEM_FRACTIONS
            for text in ("0", "1.01", "75", "much")
        ),
    ],
)
def test_each_mismatch_is_named_with_its_fix(facts: Facts, level: str, found: str, fix: str) -> None:
    findings = judge_facts(facts)
    assert {finding.check for finding in findings} == {findings[0].check}, "another check spoke, too"
    assert findings[0].level == level
    assert any(found in finding.found for finding in findings)
    assert any(fix in finding.fix for finding in findings)


SYSTEM_CUDNN = "/usr/local/cuda/lib64/libcudnn.so.9"
OLD_CUDNN = replace(CUDNN, loaded=(9, 1, 0), path=SYSTEM_CUDNN)
UNLOADED = replace(CUDNN, loaded=None, path=None, error="libcusparse.so.12: undefined symbol")
NO_PLUGIN = replace(ON_CPU, packages={"jax": "0.5", "jaxlib": "0.5"})
NO_GPU = replace(HEALTHY, gpus=(), driver=None)
MIG = replace(H100, mig=True)
VOLTA = replace(H100, name="Tesla V100", capability=(7, 0))
OLD_PLUGIN = with_packages(jax="0.9.0.1", jaxlib="0.9.0.1", jax_cuda12_plugin="0.9.2", jax_cuda12_pjrt="0.9.2")


@pytest.mark.parametrize(
    ("thread", "facts", "fix"),  # the first fix is that with which the thread ended
    [
        (
            "jax-ml/jax#29843",
            replace(ON_CPU, shadowing=("/c/libnvJitLink.so.12",), libraries=(UNLOADED,)),
            "unset LD_LIBRARY_PATH",
        ),
        (
            "jax-ml/jax#17497",
            replace(HEALTHY, shadowing=(SYSTEM_CUDNN,), libraries=(OLD_CUDNN,)),
            "unset LD_LIBRARY_PATH",
        ),
        ("jax-ml/jax#15268", replace(HEALTHY, libraries=(replace(OLD_CUDNN, package=None),)), "upgrade it where it is"),
        ("jax-ml/jax#17296", replace(HEALTHY, shm_bytes=64 * 2**20), "docker run --shm-size=1g"),
        ("jax-ml/jax#26750", replace(OLD_PLUGIN, failures={"jax": "AttributeError"}), "jax-cuda12-plugin==0.9.0.1"),
        ("ma-gilles/recovar#64", OLD_PLUGIN, "pip install jax-cuda12-plugin==0.9.0.1"),
        ("JeffSHF/ColabDock#28", replace(NO_PLUGIN, driver=(550, 54)), "pip install jax[cuda12]"),
        ("jax-ml/jax#33133", replace(NO_PLUGIN, gpus=(replace(H100, capability=(11, 0)),)), "pip install jax[cuda13]"),
        ("jax-ml/jax#20519", replace(HEALTHY, libraries=(replace(UNLOADED, package=None),)), "install jax[cuda12]"),
        (
            "jax-ml/jax#12335",
            replace(HEALTHY, failures={"jax": "backend 'rocm' failed"}, environ={"JAX_PLATFORMS": "gpu"}),
            "unset JAX_PLATFORMS (the name for NVIDIA is cuda, not gpu)",
        ),
        ("jax-ml/jax#11477", replace(NO_GPU, failures={"nvidia-smi": "Driver/library version mismatch"}), "reboot"),
        ("jax-ml/jax#15843", replace(HEALTHY, gpus=(MIG, MIG), devices=("A100",)), "CUDA_VISIBLE_DEVICES=MIG-"),
        ("jax-ml/jax#24866", replace(ON_CPU, complaint="CUDA_ERROR_SYSTEM_NOT_READY"), "nvidia-fabricmanager"),
        ("gbionics/jaxsim#50", replace(ON_CPU, complaint="cuInit: CUDA_ERROR_UNKNOWN: x"), "modprobe nvidia_uvm"),
        ("conda-forge/jaxlib-feedstock#330", replace(HEALTHY, gpus=(VOLTA,)), "install 'nvidia-cudnn-cu12<9.11'"),
    ],
)
def test_public_threads_are_answered_as_they_ended(thread: str, facts: Facts, fix: str) -> None:
    assert fix in judge_facts(facts)[0].fix, thread


def test_old_gpus_and_drivers_are_refused_for_cuda_13_only() -> None:
    thirteen = {name.replace("12", "13"): version for name, version in HEALTHY.packages.items()}
    facts = replace(HEALTHY, packages=thirteen, gpus=(VOLTA, VOLTA), driver=(560, 35))
    assert {finding.check for finding in judge_facts(facts)} == {"driver", "capability"}
    assert "jax[cuda12]" in judge_facts(facts)[0].fix
    with_old_cudnn = (replace(CUDNN, loaded=(9, 10, 2)),)
    assert judge_facts(replace(facts, packages=HEALTHY.packages, libraries=with_old_cudnn)) == ()


@pytest.mark.parametrize(
    ("name", "value", "warned"),
    [
        ("XLA_PYTHON_CLIENT_PREALLOCATE", "false", False),
        ("XLA_PYTHON_CLIENT_PREALLOCATE", "0", False),
        ("XLA_PYTHON_CLIENT_PREALLOCATE", "FALSE", True),  # which JAX takes for true
        ("XLA_PYTHON_CLIENT_ALLOCATOR", "platform", False),
        ("XLA_CLIENT_MEM_FRACTION", ".2", False),
        ("XLA_CLIENT_MEM_FRACTION", ".4", True),
    ],
)
def test_memory_in_use_matters_where_jax_takes_more_than_is_left(name: str, value: str, warned: bool) -> None:
    busy = replace(HEALTHY, gpus=(replace(H100, used_mib=60000), H100))
    assert bool(judge_facts(replace(busy, environ={name: value}))) == warned


def test_errors_come_before_warnings_and_notes() -> None:
    facts = replace(HEALTHY, gpus=(), shm_bytes=2**20, libraries=(replace(CUDNN, loaded=(8, 9)),))
    assert [finding.level for finding in judge_facts(facts)] == ["error", "warning", "note"]


# Gathering.


def test_nvidia_smi_is_read_where_it_knows_and_where_it_does_not() -> None:
    known, unknown = "NVIDIA A100, 8.0, 81920, 4, Enabled, 550.54", "GPU, with comma" + ", [N/A]" * 5
    first, second = parse_nvidia_smi(f"{known}\n{unknown}\n")
    assert first == Gpu(name="NVIDIA A100", capability=(8, 0), memory_mib=81920, used_mib=4, mig=True, driver="550.54")
    assert second == Gpu(name="GPU, with comma", driver="[N/A]")


def test_libraries_of_the_search_path_are_found(tmp_path: Path) -> None:
    for name in ("libcudnn.so.9", "libcudnn_ops.so.9", "libc.so.6", "libnccl.so.2"):
        (tmp_path / name).touch()
    found = find_shadowing(f"/nowhere::{tmp_path}")
    assert [Path(path).name for path in found] == ["libcudnn.so.9", "libcudnn_ops.so.9", "libnccl.so.2"]


def test_a_library_is_joined_with_the_wheel_that_brings_it() -> None:
    entry = {"name": "cuDNN", "compiled": [9, 8], "required": [9, 8], "loaded": [9, 12, 0], "path": "/x/libcudnn.so.9"}
    assert make_library(entry, {"nvidia-cudnn-cu12": "9.12.0", "nvidia-cudnn-frontend": "1"}) == CUDNN


WHEELS = {"nvidia-cuda-runtime": "13.0.96", "nvidia-cublas": "13.0.0.19", "nvidia-cudnn-cu13": "9.12.0.46"}


@pytest.mark.parametrize(
    ("name", "scale", "number", "required"),
    [
        ("CUDA runtime", (1000, 10), 13000, (13, 0, 48)),
        ("cuBLAS", (10000, 100, 1), 130000, (13, 0, 0, 19)),
        ("cuDNN", (10000, 100, 1), 91200, (9, 12, 0, 46)),
    ],
)
def test_a_library_is_compared_by_what_it_tells(
    name: str, scale: tuple[int, ...], number: int, required: Version
) -> None:
    entry = {"name": name, "required": required, "loaded": split_number(number, scale), "path": "/usr/local/cuda/x.so"}
    library = make_library(entry, WHEELS)
    assert len(library.loaded or ()) == len(scale)
    assert judge_facts(replace(HEALTHY, libraries=(library,))) == ()
    newer = replace(library, required=(*required[:-2], required[-2] + 1, 0))
    assert [one.check for one in judge_facts(replace(HEALTHY, libraries=(newer,)))] == ["libraries"]


def test_a_library_of_a_wheel_has_the_version_of_the_wheel() -> None:
    path = "/v/lib/python3.12/site-packages/nvidia/cu13/lib/libcudart.so.13"
    entry = {"name": "CUDA runtime", "required": [13, 0, 48], "loaded": [13, 0], "path": path}
    library = make_library(entry, WHEELS)
    assert library.loaded == (13, 0, 96)
    old = make_library(entry, {"nvidia-cuda-runtime": "13.0.40"})
    found = only(replace(HEALTHY, libraries=(old,))).found
    assert f"CUDA runtime 13.0.40 is loaded ({path}), older than 13.0.48" in found
    assert make_library(entry, {"nvidia-cuda-runtime": "12.9.79"}).loaded == (13, 0), "another one was loaded"


def test_the_imported_version_and_the_hidden_one_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder, version in zip(folders, ("9.12", "9.10"), strict=True):
        for name, number in (("flax", version), ("grain", "9.2")):
            (folder / f"{name}-{number}.dist-info").mkdir(parents=True)
            (folder / f"{name}-{number}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {number}\n")
    monkeypatch.setattr(sys, "path", [str(folder) for folder in folders])
    packages, hidden = gather.read_packages()
    assert packages == {"flax": "9.12", "grain": "9.2"}
    assert hidden == (f"flax 9.12 ({folders[0]}) hides 9.10 ({folders[1]})",)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("import time; time.sleep(60)", "did not start within 1 s"),
        ("import os; os.kill(os.getpid(), 11)", "status -11"),
        ("raise SystemExit('libcuda: bad')", "libcuda: bad"),
    ],
)
def test_a_jax_that_hangs_or_dies_takes_nothing_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, said: str
) -> None:
    (tmp_path / "probe.py").write_text(program)
    monkeypatch.setattr(gather, "PROBE", tmp_path / "probe.py")
    assert said in run_probe([], 1 if "sleep" in program else 30)["failures"]["probe"]
    assert doctor(["--timeout-s", "1"]) == 4


def test_complaints_of_jax_and_nvidia_smi_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"backend": "cpu", "devices": ["cpu"], "failures": {}, "libraries": []}
    program = "import sys; print('RuntimeError: cuInit: 999', file=sys.stderr); print('I0 done', file=sys.stderr)"
    (tmp_path / "probe.py").write_text(f"{program}; print({json.dumps(json.dumps(answer))})")
    monkeypatch.setattr(gather, "PROBE", tmp_path / "probe.py")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'Driver/library version mismatch'\necho more\nexit 18\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    facts = gather.gather_facts(30)
    assert (facts.complaint, facts.failures) == ("cuInit: 999", {"nvidia-smi": "Driver/library version mismatch"})
    assert any("reboot" in finding.fix for finding in judge_facts(facts) if finding.level == "error")


def test_this_machine_is_reported_with_or_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    code = doctor(["--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "nightjar.doctor/1"
    assert document["facts"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert document["facts"]["devices"]
    assert code == (1 if any(one["level"] == "error" for one in document["findings"]) else 0)


def test_an_expected_gpu_is_missed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    bare = replace(HEALTHY, gpus=(), packages={"jax": "0.12.0"}, backend="cpu", devices=("cpu",), libraries=())
    monkeypatch.setattr("nightjar_models.doctor.cli.gather_facts", lambda timeout_s: bare)
    monkeypatch.setattr(sys, "stderr", None)  # as Python has it where it is closed
    assert doctor([]) == 0
    assert doctor(["--expect-gpu"]) == 1
    assert "error: no GPU is seen here.\n  fix: start the container with --gpus all" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--fast"], "--fast"), *((["--timeout-s", text], f"not '{text}'") for text in ("0", "nan", "x"))],
)
def test_unknown_options_end_with_2(capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as caught:
        doctor(options)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


# Alone: the doctor of an image that has nothing else.


def test_a_python_without_any_package_gets_a_page_that_says_what_is_absent(tmp_path: Path) -> None:
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from nightjar_models.doctor.cli import main; main()"
    python = tmp_path / "bin" / "python"
    venv.create(tmp_path, with_pip=False)
    argv = [str(python), "-I", "-c", code, str(MODELS)]
    ended = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.stderr == ""
    assert ended.returncode == 1
    for line in ("JAX        not installed", "CUDA       no wheels installed", "TE         not installed"):
        assert line in ended.stdout.splitlines()
    for line in (
        "cuDNN         no wheel installed",
        "NCCL          no wheel installed",
        "error: JAX is not installed.",
    ):
        assert line in ended.stdout


def test_wheels_without_the_plugin_of_jax_are_named_and_not_called_loaded() -> None:
    packages = {"nvidia-cudnn-cu12": "9.12.0"}
    page = render_report(replace(HEALTHY, packages=packages, libraries=(), backend=None, devices=()), ())
    assert "cuDNN         nvidia-cudnn-cu12 9.12.0, not loaded: JAX has no CUDA plugin here" in page
    assert "NCCL          no wheel installed" in page


def test_the_page_and_the_json_say_the_same() -> None:
    facts = replace(HEALTHY, libraries=(replace(CUDNN, loaded=(9, 1, 0)),))
    findings = judge_facts(facts)
    page = render_report(facts, findings)
    assert len(page.splitlines()) < 50
    assert "cuDNN         loaded 9.1.0, compiled against 9.8" in page
    assert json.loads(render_json(facts, findings))["findings"][0]["fix"] in page
    assert only(facts).fix in page


# At the start of a training.


@pytest.mark.parametrize(
    ("mesh", "backend", "shm_bytes", "warned"),
    [
        ("dp2", "gpu", 64 * 2**20, True),
        ("dp2", "gpu", 2**33, False),
        ("dp1", "gpu", 64 * 2**20, False),
        ("dp2", "cpu", 64 * 2**20, False),
    ],
)
def test_a_training_that_would_use_nccl_warns_of_a_small_dev_shm_before_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mesh: str, backend: str, shm_bytes: int, warned: bool
) -> None:
    def refuse(*_: object, **__: object) -> Never:
        raise InputError("no step is taken")

    monkeypatch.setattr("jax.default_backend", lambda: backend)
    monkeypatch.setattr("nightjar_models.training.train.train", refuse)
    monkeypatch.setattr(gather, "read_shm_bytes", lambda folder: shm_bytes)
    monkeypatch.setattr(gather, "is_container", lambda: True)
    monkeypatch.setenv("XLA_FLAGS", "")
    ended = CliRunner().invoke(app, ["train", "gpt_tiny", "--mesh", mesh, "--out", str(tmp_path / "out")])
    assert isinstance(ended.exception, InputError)
    said = "warning: /dev/shm has 64 MiB: NCCL and data loaders may end with a bus error.\nHint: docker run"
    assert (said in ended.stderr) == warned
    assert ("/dev/shm" in ended.stderr) == warned


@pytest.mark.parametrize(
    ("facts", "silent"),
    [
        (replace(HEALTHY, shm_bytes=2**30 - 1), False),
        (replace(HEALTHY, shm_bytes=2**30), True),
        (replace(HEALTHY, gpus=(replace(H100, memory_mib=80_000, used_mib=20_000), H100)), True),
        (replace(HEALTHY, gpus=(replace(H100, memory_mib=80_000, used_mib=20_001), H100)), False),
        (replace(HEALTHY, driver=(525, 60, 13)), True),
        (replace(HEALTHY, driver=(524, 99, 99)), False),
    ],
    ids=["shm", "shm at", "busy at", "busy", "driver at", "driver"],
)
def test_a_machine_at_a_limit_is_healthy_and_one_beyond_is_not(facts: Facts, silent: bool) -> None:
    assert (judge_facts(facts) == ()) == silent
