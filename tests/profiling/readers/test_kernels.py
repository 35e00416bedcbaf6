"""Launch configurations: occupancy against what XLA's profiler recorded on an H100, and tensor cores by name."""

import lzma
import re
from pathlib import Path

import polars as pl
import pytest

from nightjar_profiling.readers.kernels import Multiprocessor, find_occupancy, summarise_kernels

GOLDEN = sorted((Path(__file__).parent / "golden" / "h100").glob("*.xz"))
H100 = Multiprocessor(warps=64, blocks=32, registers=65536, shared_bytes=233472)
LAUNCH = re.compile(
    rb"regs:(\d+) static_shared:0 dynamic_shared:0 grid:[\d,]+ "
    rb"block:(\d+),(\d+),(\d+) occ_pct:(\d+(?:\.\d+)?)(?=[^\d.])"
)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name.split(".")[0])
def test_occupancy_is_that_which_the_cuda_driver_reports_for_whole_warps(golden: Path) -> None:
    launches = {tuple(map(float, match)) for match in LAUNCH.findall(lzma.decompress(golden.read_bytes()))}
    whole = [launch for launch in launches if launch[1] * launch[2] * launch[3] % 32 == 0 and launch[4] <= 100]
    assert len(whole) > 5
    for registers, *block, percent in whole:
        threads = int(block[0] * block[1] * block[2])
        assert find_occupancy(threads, int(registers), 0, H100, reserved=0) == pytest.approx(percent / 100)


def test_shared_memory_limits_the_blocks_with_what_the_system_reserves() -> None:
    assert find_occupancy(128, 16, 16392, H100) == 13 * 4 / 64
    assert find_occupancy(0, 16, 0, H100) == 0


@pytest.mark.parametrize(
    ("kernel", "uses"),
    [
        ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize96x64x32_stage4_warpsize2x2x1_tensor16x8x16_kernel", True),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_stages_64x3_tn", True),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_32x3_tn_align4>", True),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NTN", True),
        ("ampere_sgemm_128x64_tn", None),
        ("loop_add_fusion", None),
    ],
)
def test_tensor_cores_are_known_by_name_alone(kernel: str, uses: bool | None) -> None:
    launch = {"rank": 0, "device": 0, "kernel": kernel, "grid": "1,1,1", "block": "32,1,1", "registers": 32}
    frame = pl.DataFrame([{**launch, "shared_bytes": 0, "duration_ns": 5, "occupancy": None}])
    assert summarise_kernels(frame)["tensor_cores"].to_list() == [uses]
