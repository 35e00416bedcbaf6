"""What the doctor reads of this machine: nvidia-smi, libraries, packages, and JAX in another process."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from nightjar_models.doctor import gather
from nightjar_models.doctor.checks import judge_facts
from nightjar_models.doctor.cli import doctor
from nightjar_models.doctor.facts import Gpu, Version
from nightjar_models.doctor.gather import find_shadowing, make_library, parse_nvidia_smi, run_probe
from nightjar_models.doctor.probe import add_paths, ask_libraries, split_number
from tests.models.doctor.test_doctor import CUDNN, but, only
from tests.stand_ins import put_on_path


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
    assert judge_facts(but(libraries=(library,))) == ()
    newer = replace(library, required=(*required[:-2], required[-2] + 1, 0))
    assert [one.check for one in judge_facts(but(libraries=(newer,)))] == ["libraries"]


def test_a_library_of_a_wheel_has_the_version_of_the_wheel() -> None:
    path = "/v/lib/python3.12/site-packages/nvidia/cu13/lib/libcudart.so.13"
    entry = {"name": "CUDA runtime", "required": [13, 0, 48], "loaded": [13, 0], "path": path}
    library = make_library(entry, WHEELS)
    assert library.loaded == (13, 0, 96)
    old = make_library(entry, {"nvidia-cuda-runtime": "13.0.40"})
    found = only(but(libraries=(old,))).found
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
    mismatch = "#!/bin/sh\necho 'Driver/library version mismatch'\necho more\nexit 18\n"
    put_on_path(monkeypatch, tmp_path, {"nvidia-smi": mismatch})
    facts = gather.gather_facts(30)
    assert (facts.complaint, facts.failures) == ("cuInit: 999", {"nvidia-smi": "Driver/library version mismatch"})
    assert any("reboot" in finding.fix for finding in judge_facts(facts) if finding.level == "error")


def test_the_plugin_tells_what_jax_was_built_with_and_what_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"cuda_runtime": (12090, 13000), "cudnn": (90800, 91002), "cublas": (130001, 130100)}
    versions = ModuleType("_versions")
    for name, (build, loaded) in {**numbers, "cufft": (11402, 11403)}.items():
        setattr(versions, f"{name}_build_version", lambda number=build: number)
        setattr(versions, f"{name}_get_version", lambda number=loaded: number)
    monkeypatch.setitem(sys.modules, "jax_cuda13_plugin", ModuleType("jax_cuda13_plugin"))
    monkeypatch.setitem(sys.modules, "jax_cuda13_plugin._versions", versions)
    monkeypatch.setattr("nightjar_models.doctor.probe.ask_nccl", lambda: {"name": "NCCL", "file": "libc.so"})
    found = ask_libraries()
    files = ["libcudart", "libcudnn.so", "libcublas.so", "libcufft.so", "libcusparse.so", "libc.so"]
    assert [library["file"] for library in found] == files
    add_paths([*found, part := {"file": "ibc.so"}])
    assert part == {"path": None}  # a part of a name is no library
    assert (found[-1]["name"], found[-1]["path"].rpartition("/")[2].startswith("libc.so")) == ("NCCL", True)
    assert [{key: value for key, value in library.items() if key != "path"} for library in found[:-1]] == [
        {"name": "CUDA runtime", "compiled": [12, 9], "required": None, "loaded": [13, 0]},
        {"name": "cuDNN", "compiled": [9, 8], "required": [9, 8], "loaded": [9, 10, 2]},
        {"name": "cuBLAS", "compiled": [13, 0], "required": None, "loaded": [13, 1, 0]},
        {"name": "cuFFT", "compiled": [11, 4], "required": [11, 4], "loaded": [11, 4, 3]},
        {"name": "cuSPARSE", "error": "module '_versions' has no attribute 'cusparse_build_version'"},
    ]
