"""The night that is compiled ahead of time has every workload, GPU, size and axis, and each cell fits its devices; what
lies among the baselines belongs to a cell of a matrix."""

import dataclasses
from types import SimpleNamespace

import pytest
from flax import nnx

from nightjar_ci.night.matrix import expand, read_matrix
from nightjar_models.hardware.target import Cluster, parse_cluster
from nightjar_models.parallel.mesh import AXES as AXIS_NAMES
from nightjar_models.parallel.mesh import MeshShape, parse_mesh
from nightjar_models.presets import PRESETS, large
from nightjar_models.presets.config import TrainConfig, override
from nightjar_models.training.switches import check_switches
from nightjar_models.training.tasks import check_axes, find_task
from tests.places import ROOT

MATRICES, BASELINES = ROOT / "ci" / "matrix", ROOT / "ci" / "baselines"
LARGE = {name for name, preset in PRESETS.items() if preset.__module__ == large.__name__}
AXES = ("dp", "fsdp", "tp", "ep", "pp")


def read_cells(name: str) -> dict[str, tuple[TrainConfig, Cluster, MeshShape]]:
    cells = {}
    for job in expand(read_matrix(MATRICES / f"{name}.toml")):
        words = list(job.command)
        if ":" in words[2]:
            continue  # a function
        given = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
        cluster = parse_cluster(words[words.index("--target") + 1])
        mesh = parse_mesh(words[words.index("--mesh") + 1]) if "--mesh" in words else MeshShape(dp=cluster.devices)
        cells[job.id] = override(PRESETS[words[2]](), given), cluster, mesh
    return cells


@pytest.mark.parametrize("name", ["nightly-aot", "weekly-aot"])
def test_every_cell_has_devices_for_its_mesh_and_examples_for_its_devices(name: str) -> None:
    for cell, (config, cluster, mesh) in read_cells(name).items():
        assert mesh.size == cluster.devices, cell
        parts = config.compute.microbatches if mesh.pp > 1 else 1
        assert config.batch_size % (mesh.dp * mesh.fsdp * mesh.ep * parts) == 0, cell
        assert mesh.pp == 1 or config.compute.scan_layers, cell
        sizes = {AXIS_NAMES[axis]: size for axis, size in dataclasses.asdict(mesh).items()}
        check_axes(config, SimpleNamespace(shape=sizes))  # type: ignore[arg-type]
        check_switches(config, SimpleNamespace(shape=sizes))  # type: ignore[arg-type]


def find_splits(config: TrainConfig) -> set[tuple[int, str]]:
    """Sizes of a model's parameters, its layers stacked, each with the mesh axis that it is split over."""
    task = find_task(override(config, ["compute.scan_layers=true"]))
    state = nnx.state(nnx.eval_shape(lambda: task.build(nnx.Rngs(0))), nnx.Param)
    splits = [(one.shape, one.get_metadata().get("out_sharding") or ()) for _, one in nnx.to_flat_state(state)]
    return {(size, axis) for shape, axes in splits for size, axis in zip(shape, axes, strict=False) if axis is not None}


@pytest.mark.slow
def test_every_parameter_can_be_split_over_the_mesh_of_its_cell() -> None:
    known: dict[str, set[tuple[int, str]]] = {}
    for name in ("nightly-aot", "weekly-aot"):
        for cell, (config, _, mesh) in read_cells(name).items():
            model = str(config.model)
            if model not in known:
                known[model] = find_splits(config)
            parts = {AXIS_NAMES[axis]: size for axis, size in dataclasses.asdict(mesh).items()}
            assert [(size, axis) for size, axis in known[model] if size % parts[axis]] == [], cell


@pytest.mark.parametrize("name", ["nightly-aot", "weekly-aot"])
def test_no_workload_gpu_size_or_axis_is_left_out(name: str) -> None:
    cells = read_cells(name).values()
    assert {config.workload for config, _, _ in cells} == LARGE
    chosen = {(cluster.target.short, cluster.devices) for _, cluster, _ in cells}
    assert chosen >= {(gpu, size) for gpu in ("a100", "h100", "b200") for size in (1, 8, 128, 1024)}
    for axis in AXES:
        assert any(getattr(mesh, axis) > 1 for _, _, mesh in cells), axis
    assert any(sum(getattr(mesh, axis) > 1 for axis in AXES) >= 3 for _, _, mesh in cells)


def test_the_night_has_products_in_fp8_beside_the_same_in_bfloat16_and_a_ring_over_split_positions() -> None:
    cells = read_cells("nightly-aot")
    eight = {cell: read for cell, read in cells.items() if read[0].compute.products == "fp8"}
    assert {cluster.target.short for _, cluster, _ in eight.values()} == {"h100", "b200"}
    for cell, (config, cluster, mesh) in eight.items():
        plain = override(config, ["compute.products=plain"])
        assert cells[cell.removesuffix("-fp8")] == (plain, cluster, mesh)
    words = {job.id: job.command for job in expand(read_matrix(MATRICES / "nightly-aot.toml"))}
    assert all("xla_gpu_enable_triton_gemm=false" in words[cell] for cell in eight)  # else there is none: docs
    assert any(mesh.sp > 1 and config.compute.attention == "ring" for config, _, mesh in cells.values())


def test_each_baseline_is_of_a_cell_that_a_matrix_has() -> None:
    cells = {job.cell for matrix in MATRICES.glob("*.toml") for job in expand(read_matrix(matrix))}
    found = {folder.name for folder in BASELINES.iterdir()}
    assert found
    assert found <= cells
    assert {path.name for path in BASELINES.glob("*/*")} == {"convergence.json", "facts"}


def test_a_cell_is_one_program_in_all_matrices() -> None:
    found: dict[str, tuple[str, ...]] = {}
    for matrix in sorted(MATRICES.glob("*.toml")):
        for job in expand(read_matrix(matrix)):
            if job.replicate is None:
                assert found.setdefault(job.cell, job.command) == job.command, f"{matrix.name}: {job.cell}"
