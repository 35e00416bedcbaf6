import json
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.cli import main
from nightjar_ci.errors import InputError
from nightjar_ci.images.choose import CAPABILITIES, judge_flavors, read_capability
from tests.called import call
from tests.stand_ins import put_on_path


@pytest.mark.parametrize(
    ("driver", "gpu", "flavors"),
    [
        ("580.65", "h100", ["cuda13", "cuda12", "cpu"]),
        ("550.54.15", "NVIDIA H100", ["cuda12", "cpu"]),
        pytest.param("580.65", "V100", ["cpu"], id="SciML/SciMLBenchmarks.jl#1736"),
        pytest.param("470.182", "3.7", ["cpu"], id="jax-ml/jax#15961"),
        pytest.param("535.54", "H100", ["cuda12", "cpu"], id="NVIDIA-NeMo/labs-molt#44"),
        ("580.65", "12.0", ["cuda13", "cuda12", "cpu"]),
        ("550.54", "RTX 5090", ["cpu"]),
        ("569.99", "gb200", ["cpu"]),
        ("570.00", "B200", ["cuda12", "cpu"]),
        ("575.51", "b300", ["cpu"]),
        ("580.65", "DGX Spark", ["cuda13", "cuda12", "cpu"]),
        pytest.param("580.00", "Jetson Thor", ["cuda13", "cpu"], id="OpenRAL/openral#167"),
    ],
)
def test_the_best_flavor_comes_first_and_the_others_have_a_reason(driver: str, gpu: str, flavors: list[str]) -> None:
    fits = judge_flavors(driver, read_capability(gpu))
    assert [fit.flavor for fit in fits if not fit.reason] == flavors
    assert {fit.flavor for fit in fits} == {"cuda13", "cuda12", "cpu"}


@given(st.integers(300, 700), st.sampled_from(sorted(CAPABILITIES)))
def test_cpu_always_fits_and_a_newer_driver_takes_nothing_away(driver: int, gpu: str) -> None:
    older, newer = (
        {fit.flavor for fit in judge_flavors(str(version), CAPABILITIES[gpu]) if not fit.reason}
        for version in (driver, driver + 50)
    )
    assert {"cpu"} <= older <= newer


@pytest.mark.parametrize(("driver", "capability"), [(None, 90), ("580.65", None)])
def test_a_driver_without_a_gpu_and_a_gpu_without_a_driver_get_cpu(driver: str | None, capability: int | None) -> None:
    best, *others = judge_flavors(driver, capability)
    assert (best.flavor, best.reason) == ("cpu", "")
    assert {fit.reason for fit in others} == {"no NVIDIA driver or GPU"}


@pytest.mark.parametrize("gpu", ["MI300X", "AMD Instinct MI250", "Radeon RX 7900", "tpu-v5e"])
def test_a_gpu_of_another_maker_is_no_misspelt_one(gpu: str) -> None:
    with pytest.raises(InputError, match="no GPU of NVIDIA: only the flavour cpu") as caught:
        read_capability(gpu)
    assert "did you mean" not in str(caught.value)


def test_boards_with_an_arm_processor_get_images_of_arm64() -> None:
    for gpu, suffix in {"GH200": "-arm64", "gb10": "-arm64", "thor": "-arm64", "B200": ""}.items():
        done = call(main, "images", "choose", "--driver", "580.65", "--gpu", gpu)
        first = done.stdout.splitlines()[0]
        assert (done.returncode, first) == (0, f"cuda13   yes, such as nightjar/jax:cuda13{suffix}")


def test_an_unknown_gpu_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown GPU 'h10'") as caught:
        read_capability("h10")
    assert "did you mean 'h100'? Else give its compute capability" in str(caught.value)


@pytest.mark.parametrize(
    ("capability", "gpus"),  # as NVIDIA's table of CUDA GPUs lists them
    [
        (60, {"p100"}),
        (70, {"v100"}),
        (75, {"t4", "rtx2080"}),
        (80, {"a100", "a30"}),
        (86, {"a10", "a40", "rtx3090"}),
        (89, {"l4", "l40", "l40s", "rtx4090"}),
        (90, {"h100", "h200", "gh200"}),
        (100, {"b200", "gb200"}),
        (103, {"b300", "gb300"}),
        (110, {"thor"}),
        (120, {"rtx5090", "rtxpro6000"}),
        (121, {"gb10", "dgxspark"}),
    ],
)
def test_a_gpu_has_the_compute_capability_of_its_architecture(capability: int, gpus: set[str]) -> None:
    assert {gpu for gpu in CAPABILITIES if read_capability(gpu) == capability} == gpus


@pytest.mark.parametrize("gpu", ["9.", ".9", "².", "9.0.1", "1000.0"])
def test_what_is_not_a_compute_capability_is_an_unknown_gpu(gpu: str) -> None:
    with pytest.raises(InputError, match="unknown GPU"):
        read_capability(gpu)


def test_the_command_needs_both_values_or_none() -> None:
    choose = partial(call, main, "images", "choose", "--driver")
    done = choose("550.54", "--gpu", "h100")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "cuda12   yes, such as nightjar/jax:cuda12")
    assert "cuda13   no: driver 550.54 is older than 580" in done.stdout
    assert choose("550.54").returncode == 2
    assert choose("new", "--gpu", "h100").returncode == 2
    assert json.loads(choose("580.1", "--gpu", "t4", "--json").stdout)[0]["flavor"] == "cuda13"


def test_a_driver_that_does_not_answer_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n"
    put_on_path(monkeypatch, tmp_path, {"nvidia-smi": said})
    done = call(main, "images", "choose")
    assert (done.returncode, "Driver/library version mismatch" in done.stderr) == (0, True)
    assert "cpu      yes" in done.stdout
