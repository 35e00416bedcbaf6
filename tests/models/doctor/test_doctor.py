"""The doctor names each mismatch with its fix, and is silent where nothing is wrong: made-up machines, and this one."""

import json
import re
import subprocess
import sys
import venv
from dataclasses import replace
from pathlib import Path
from typing import Any, Never

import pytest
from typer.testing import CliRunner

from nightjar_models.cli import app
from nightjar_models.doctor import gather
from nightjar_models.doctor.checks import MEM_FRACTIONS, Finding, judge_facts
from nightjar_models.doctor.cli import doctor
from nightjar_models.doctor.facts import Facts, Gpu, Library
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


def but(**changed: Any) -> Facts:
    return replace(HEALTHY, **changed)


ON_CPU = but(backend="cpu", devices=("cpu",))
ABSENT = but(packages={}, libraries=())
CRASHING = but(packages={"jax": "0.10.2", "jaxlib": "0.10.2"}, gpus=(), backend="cpu")


def with_packages(**versions: str) -> Facts:
    return but(packages={**HEALTHY.packages, **{k.replace("_", "-"): v for k, v in versions.items()}})


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
            but(libraries=(replace(CUDNN, loaded=(9, 1, 0)),)),
            "error",
            "cuDNN 9.1.0 is loaded (/x/libcudnn.so.9), older than 9.8 that this JAX needs",
            "pip install --upgrade nvidia-cudnn-cu12",
        ),
        (
            but(libraries=(replace(CUDNN, required=(9, 1), loaded=(9, 5)),)),
            "warning",
            "older than 9.8 that JAX was compiled against",
            "pip install --upgrade nvidia-cudnn-cu12",
        ),
        (
            but(libraries=(replace(CUDNN, loaded=None, error="libcudnn.so.9: no such file"),)),
            "error",
            "cuDNN cannot be loaded: libcudnn.so.9",
            "nvidia-cudnn-cu12",
        ),
        (but(driver=(470, 82, 1)), "error", "driver 470.82.1 is older than 525", "to 525"),
        (with_packages(nvidia_nccl_cu13="2.28"), "error", "CUDA 13: nvidia-nccl-cu13", "uninstall nvidia-nccl-cu13"),
        (with_packages(nvidia_dali_cuda130="2.0"), "error", "nvidia-dali-cuda130", "pip uninstall nvidia-dali-cuda130"),
        (
            replace(CRASHING, python="3.11.7"),
            "warning",
            "jaxlib 0.10.2 on x86: programs with arrays of seven or more dimensions can end with SIGSEGV (jax-ml/jax#3",
            "use Python 3.12 or newer",
        ),
        (replace(CRASHING, python="3.12.1"), "warning", "jaxlib 0.10.2 on x86", "pip install --upgrade jax"),
        (but(backend="cpu", devices=("cpu",)), "error", "cpu though there are 2 GPUs", "JAX's own warning"),
        (
            but(backend="cpu", devices=("cpu",), environ={"JAX_PLATFORMS": "cpu"}),
            "warning",
            "JAX_PLATFORMS='cpu'",
            "unset JAX_PLATFORMS",
        ),
        (but(devices=("NVIDIA H100",)), "warning", "JAX sees 1 of 2 GPUs", "CUDA_VISIBLE_DEVICES"),
        (but(gpus=(), driver=None), "note", "no GPU is seen here", "--gpus all"),
        (
            but(gpus=(replace(H100, used_mib=60000), H100)),
            "warning",
            "GPU 0 has 60000 of 81559 MiB in use",
            "XLA_PYTHON_CLIENT_PREALLOCATE=false",
        ),
        (
            but(environ={"XLA_CLIENT_MEM_FRACTION": ".9", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".9"}),
            "error",
            "are both set: JAX does not start",
            "unset XLA_PYTHON_CLIENT_MEM_FRACTION",
        ),
        (
            but(hidden=("flax 0.12.12 (/a) hides 0.12.10 (/b)",)),
            "warning",
            "flax 0.12.12 (/a) hides 0.12.10 (/b)",
            "unset PYTHONPATH",
        ),
        (but(failures={"jax": "ImportError: x"}), "error", "jax: ImportError: x", "pip install"),
        (but(failures={"nvidia-smi": "library version mismatch"}), "error", "library version mismatch", "reboot"),
        (replace(ABSENT, failures={"jax": "x"}, container=False), "error", "JAX is not installed", "pip install jax,"),
        (replace(ABSENT, failures={"jax": "x"}), "error", "JAX is not installed", "use the image jax"),
        (with_packages(jax="0.11.9"), "error", "jax 0.11.9 beside the newer jaxlib 0.12.0", "install jax==0.12.0"),
        (but(shadowing=tuple("abcd")), "warning", "LD_LIBRARY_PATH puts a, b, c, d before", "unset LD_"),
        (but(shadowing=tuple("abcde")), "warning", "a, b, c, d and 1 more before", "unset LD_"),
        *(
            (but(environ={name: text}), "error", f"{name} is '{text}', expected", f"unset {name}")
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
        ("jax-ml/jax#17497", but(shadowing=(SYSTEM_CUDNN,), libraries=(OLD_CUDNN,)), "unset LD_LIBRARY_PATH"),
        ("jax-ml/jax#15268", but(libraries=(replace(OLD_CUDNN, package=None),)), "upgrade it where it is"),
        ("jax-ml/jax#17296", but(shm_bytes=64 * 2**20), "docker run --shm-size=1g"),
        ("jax-ml/jax#26750", replace(OLD_PLUGIN, failures={"jax": "AttributeError"}), "jax-cuda12-plugin==0.9.0.1"),
        ("ma-gilles/recovar#64", OLD_PLUGIN, "pip install jax-cuda12-plugin==0.9.0.1"),
        ("JeffSHF/ColabDock#28", replace(NO_PLUGIN, driver=(550, 54)), "pip install jax[cuda12]"),
        ("jax-ml/jax#33133", replace(NO_PLUGIN, gpus=(replace(H100, capability=(11, 0)),)), "pip install jax[cuda13]"),
        ("jax-ml/jax#20519", but(libraries=(replace(UNLOADED, package=None),)), "install jax[cuda12]"),
        (
            "jax-ml/jax#12335",
            but(failures={"jax": "backend 'rocm' failed"}, environ={"JAX_PLATFORMS": "gpu"}),
            "unset JAX_PLATFORMS (the name for NVIDIA is cuda, not gpu)",
        ),
        ("jax-ml/jax#11477", but(gpus=(), failures={"nvidia-smi": "library version mismatch"}), "reboot"),
        ("jax-ml/jax#15843", but(gpus=(replace(H100, mig=True),)), "CUDA_VISIBLE_DEVICES=MIG-"),
        ("jax-ml/jax#24866", replace(ON_CPU, complaint="CUDA_ERROR_SYSTEM_NOT_READY"), "nvidia-fabricmanager"),
        ("gbionics/jaxsim#50", replace(ON_CPU, complaint="cuInit: CUDA_ERROR_UNKNOWN: x"), "modprobe nvidia_uvm"),
        ("conda-forge/jaxlib-feedstock#330", but(gpus=(VOLTA,)), "install 'nvidia-cudnn-cu12<9.11'"),
    ],
)
def test_public_threads_are_answered_as_they_ended(thread: str, facts: Facts, fix: str) -> None:
    assert fix in judge_facts(facts)[0].fix, thread


def test_old_gpus_and_drivers_are_refused_for_cuda_13_only() -> None:
    thirteen = {name.replace("12", "13"): version for name, version in HEALTHY.packages.items()}
    facts = but(packages=thirteen, gpus=(VOLTA, VOLTA), driver=(560, 35))
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
    busy = but(gpus=(replace(H100, used_mib=60000), H100))
    assert bool(judge_facts(replace(busy, environ={name: value}))) == warned


def test_errors_come_before_warnings_and_notes() -> None:
    facts = but(gpus=(), shm_bytes=2**20, libraries=(replace(CUDNN, loaded=(8, 9)),))
    assert [finding.level for finding in judge_facts(facts)] == ["error", "warning", "note"]


def test_this_machine_is_reported_with_or_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    code = doctor(["--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "nightjar.doctor/1"
    assert document["facts"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert document["facts"]["devices"]
    assert code == (1 if any(one["level"] == "error" for one in document["findings"]) else 0)


def test_an_expected_gpu_is_missed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    bare = but(gpus=(), backend="cpu", devices=("cpu",))
    monkeypatch.setattr("nightjar_models.doctor.cli.gather_facts", lambda timeout_s: bare)
    monkeypatch.setattr(sys, "stderr", None)  # as Python has it where it is closed
    assert doctor([]) == 0
    assert doctor(["--expect-gpu"]) == 1
    said = "no GPU is seen here.\n  fix: start the container with --gpus all"
    assert re.findall(rf"(\w+): {said}", capsys.readouterr().out) == [
        "note",
        "error",
    ]  # without the option, and with it


@pytest.mark.parametrize(
    ("options", "said"),
    [(["--fast"], "--fast"), *((["--timeout-s", text], f"not '{text}'") for text in ("0", "nan", "x"))],
)
def test_unknown_options_end_with_2(capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    with pytest.raises(SystemExit) as caught:
        doctor(options)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


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
    page = render_report(but(packages=packages, libraries=(), backend=None, devices=()), ())
    assert "cuDNN         nvidia-cudnn-cu12 9.12.0, not loaded: JAX has no CUDA plugin here" in page
    assert "NCCL          no wheel installed" in page


def test_the_page_and_the_json_say_the_same() -> None:
    facts = but(libraries=(replace(CUDNN, loaded=(9, 1, 0)),))
    findings = judge_facts(facts)
    page = render_report(facts, findings)
    assert len(page.splitlines()) < 50
    assert "cuDNN         loaded 9.1.0, compiled against 9.8" in page
    assert json.loads(render_json(facts, findings))["findings"][0]["fix"] in page
    assert only(facts).fix in page


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
        (but(shm_bytes=2**30 - 1), False),
        (but(shm_bytes=2**30), True),
        (but(gpus=(replace(H100, memory_mib=80_000, used_mib=20_000), H100)), True),
        (but(gpus=(replace(H100, memory_mib=80_000, used_mib=20_001), H100)), False),
        (but(gpus=(replace(H100, capability=(5, 2)),) * 2, libraries=()), True),
        (but(driver=(525, 60, 13)), True),
        (but(driver=(524, 99, 99)), False),
    ],
    ids=["shm", "shm at", "busy at", "busy", "oldest", "driver at", "driver"],
)
def test_a_machine_at_a_limit_is_healthy_and_one_beyond_is_not(facts: Facts, silent: bool) -> None:
    assert (judge_facts(facts) == ()) == silent
