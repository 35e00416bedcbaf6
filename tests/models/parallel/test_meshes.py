"""On each mesh a model has the losses of a single device, and the collectives that its axes bring.

Each axis of each model is in the matrix of the night or refused; a table of `docs/models.md` says which. What a case
here sends, kinds and bytes, is noted in `golden/`, by version of jaxlib.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nightjar_ci.baselines.baseline import FactsBaseline
from nightjar_ci.formats.documents import read_document
from nightjar_ci.formats.policy import read_policies
from nightjar_ci.formats.run_record import Facts
from nightjar_ci.judges.facts.facts import KnownFacts, judge_facts
from nightjar_ci.night.matrix import expand, read_matrix
from nightjar_models.errors import InputError
from nightjar_models.parallel.mesh import AXES, MeshShape, parse_mesh, render_xla_flags
from nightjar_models.presets import find_preset
from nightjar_models.presets.sizes import MoEConfig
from nightjar_models.training.tasks import WITHOUT
from tests.ci.nights import record
from tests.models.conftest import QUICK_FLAGS, keep_isa
from tests.models.parallel.eight_meshes import SIZES
from tests.places import ROOT

SCAN, RING, FFI = "compute.scan_layers=true", "compute.attention=ring", "compute.norm=ffi"
LONG = ("model.length=64", "batch_size=16")  # a stream has more bytes than a layer's parameters
MATRIX = expand(read_matrix(ROOT / "ci" / "matrix" / "nightly-meshes.toml"))
# The gate runs one model, the positions of another and what a third sends; the night of the matrix runs all of them.
FEW = [  # one traced layer each, where nothing speaks for two: most of the time here goes to the compiler
    ["gpt_tiny", "dp1", SCAN],
    ["gpt_tiny", "dp2.ep2.tp2", SCAN],
    ["gpt_tiny", "pp2.fsdp2.sp2", SCAN, RING],
    ["moe_tiny", "dp2.sp2.tp2", SCAN],
]
KERNEL = [["llama_tiny", "dp1", SCAN], ["llama_tiny", "ep2.sp2.tp2", SCAN, RING, FFI]]
KEPT = ["llama_tiny", "fsdp8", SCAN, *LONG]
TENSOR = [["llama_tiny", "fsdp4.tp2", *LONG], ["llama_tiny", "fsdp4.tp2", SCAN, *LONG]]
PIPED = ["llama_tiny", "pp2.fsdp4", SCAN, *LONG]
FORGOTTEN = ["llama_tiny", "fsdp8", "forgotten", SCAN, *LONG]
UNFIT = {
    ("gpt_tiny", "pp2"): "--mesh: pp2 splits scanned layers. Hint: add --set compute.scan_layers=true",
    ("gpt_tiny", "pp4", SCAN): "has a side of 2, expected a multiple of the mesh's pipeline (4)",
    ("gpt_tiny", "sp3"): "a stream has 16 positions, expected a multiple of the mesh's sequence (3)",
    ("gpt_tiny", "tp8"): "expected a multiple of the mesh's tensor (8)",
    ("gpt_tiny", "ep6"): "batch_size: expected a multiple of data x fsdp x expert x compute.accumulate (6), found 16",
    ("gpt_tiny", "dp8", "compute.accumulate=4"): "compute.accumulate (32), found 16",
    ("vit_tiny", "pp2", SCAN, "model.dropout=0.1"): "model.dropout: expected a mesh without a pipeline, found pp2",
    ("gpt_tiny", "dp16"): "--mesh dp16: expected at least 16 cpu devices, found 8",
    (
        "diffusion_tiny",
        "sp2",
    ): "diffusion_tiny has nothing to split over sequence; expected axes of dp, fsdp, tp, ep. Hint:",
    ("diffusion_tiny", "pp2", SCAN): "diffusion_tiny has nothing to split over pipeline",
    ("vae_tiny", "sp2"): "vae_tiny has nothing to split over sequence",
    ("vae_tiny", "pp2"): "--mesh: pp2: vae_tiny has nothing to split over pipeline; expected axes of dp, fsdp, tp, ep",
    (
        "gpt_tiny",
        "pp2",
        SCAN,
        "compute.products=fp8",
    ): "fp8: expected a mesh without a pipeline, found pp2. Hint: FP8 scales",
    (
        "gpt_tiny",
        "ep2",
        "compute.products=te_mxfp8",
    ): "te_mxfp8: expected a mesh of dp, fsdp and tp, found ep. Hint: c",
    ("gpt_tiny", "sp2", "compute.layers=te_block"): "te_block: expected a mesh of dp, fsdp and tp, found sp. Hint: c",
    ("gpt_tiny", "pp2", SCAN, "compute.microbatches=3"): "expected a multiple of compute.microbatches (3), found 16",
}
POLICIES = read_policies(ROOT / "ci" / "policies.toml")
JAXLIB = version("jaxlib")
# float32 sums over 16 x 16 positions in another order; 4e-7 was the most that was seen
TOLERANCE = 5e-6


Once = Callable[[str, Callable[[], str]], str]


@pytest.fixture(scope="module")
def runs(once: Once) -> Any:
    """What `eight_meshes.py` computes for few cases and those of a test."""
    cases = [*FEW, KEPT, PIPED, FORGOTTEN, *TENSOR, *UNFIT]
    return json.loads(once("eight_meshes_few.json", lambda: compute(cases)))


def compute(cases: Sequence[Sequence[str]]) -> str:
    flags = f"--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 {QUICK_FLAGS}"
    done = subprocess.run(
        [sys.executable, "-m", "tests.models.parallel.eight_meshes"],
        cwd=ROOT,
        env={**os.environ, **keep_isa(flags), "JAX_PLATFORMS": "cpu"},
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "full rematerialization" not in done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("case", FEW[1:3], ids=" ".join)
def test_a_mesh_has_the_losses_of_a_single_device(runs: Any, case: list[str]) -> None:
    compare_losses(runs[" ".join(FEW[0])], runs[" ".join(case)])


@pytest.mark.weekly
@pytest.mark.compiler
def test_a_kernel_of_ours_on_a_mesh_has_the_losses_of_a_single_device() -> None:
    computed = json.loads(compute(KERNEL))
    compare_losses(*(computed[" ".join(case)] for case in KERNEL))


def compare_losses(one: Any, eight: Any) -> None:
    assert eight["losses"] == pytest.approx(one["losses"], rel=TOLERANCE)
    assert one["losses"][-1] != pytest.approx(one["losses"][0], rel=1e-3)  # it did learn something to be compared
    assert one["facts"]["collectives"] == {}
    assert eight["facts"]["collectives"]["all-reduce"]["count"] > 0


@pytest.mark.slow
def test_each_axis_brings_its_collective(runs: Any) -> None:
    staged, split = (runs[" ".join(case)]["facts"]["collectives"] for case in FEW[2:])
    assert split["all-gather"]["count"] > 0  # keys and values of all positions
    assert staged["collective-permute"]["count"] > 2  # from stage to stage, and around the ring


def refused(preset: str) -> list[str]:
    return [axis for axis, name in AXES.items() if name in WITHOUT.get(type(find_preset(preset)().model), ())]


@pytest.mark.parametrize("preset", SIZES)
def test_every_axis_of_every_model_is_compared_with_a_single_device_or_refused(preset: str) -> None:
    meshes = [parse_mesh(job.command[4]) for job in MATRIX if job.command[2] == preset]
    for axis in AXES:
        if axis in refused(preset):
            assert any(case[:2] == (preset, f"{axis}2") for case in UNFIT), axis
        else:
            assert any(getattr(mesh, axis) > 1 for mesh in meshes), axis


def test_the_docs_have_the_table_of_models_and_axes() -> None:
    axes = [f"`{axis}`" for axis in AXES]
    rows = [f"| preset | {' | '.join(axes)} | compared on |", f"|{'---|' * (len(axes) + 2)}"]
    for preset in SIZES:
        without = refused(preset)
        as_data = () if isinstance(find_preset(preset)().model, MoEConfig) else ("ep",)
        cells = ["refused" if axis in without else "as `dp`" if axis in as_data else "yes" for axis in AXES]
        meshes = [job.command[4] for job in MATRIX if job.command[2] == preset and job.command[4] != "dp1"]
        rows.append(f"| `{preset}` | {' | '.join(cells)} | {', '.join(f'`{mesh}`' for mesh in meshes)} |")
    table = "\n".join(rows)
    assert table in (ROOT / "docs" / "models.md").read_text(), f"expected in docs/models.md:\n{table}"


def test_the_gate_watches_every_mesh_of_the_table_and_compares_it_with_a_single_device() -> None:
    for job in MATRIX:
        preset, mesh = job.command[2], job.command[4]
        equality = POLICIES.for_curve(job.cell, "loss")
        assert equality is not None
        assert equality.same_as == job.cell.removesuffix(mesh) + "dp1"
        assert equality.jobs == f"{preset}-mesh-*"
        known = list((ROOT / "ci" / "baselines" / job.cell / "facts").glob("*.json"))
        assert known, f"nightjar-ci baseline ci/matrix/nightly-meshes.toml --jobs '{job.cell}'"
        for path in known:
            (facts,) = read_document(path, FactsBaseline, "nightjar.facts-baseline/1").facts
            assert ("all-reduce" in facts.collectives) == (mesh != "dp1")


@pytest.mark.slow
def test_collectives_are_those_that_were_noted(
    runs: Any, golden: Callable[[str, str], None], request: pytest.FixtureRequest
) -> None:
    found = {" ".join(case[:2]): runs[" ".join(case)]["facts"]["collectives"] for case in FEW[1:]}
    noted = f"mesh_collectives-jaxlib-{JAXLIB}.json"
    if not (request.path.parent / "golden" / noted).exists() and not request.config.getoption("--update-golden"):
        pytest.skip(f"no collectives of jaxlib {JAXLIB} were noted: pytest --update-golden notes them")
    lines = [f"  {json.dumps(name)}: {json.dumps(facts)}" for name, facts in found.items()]
    golden(noted, "{\n" + ",\n".join(lines) + "\n}\n")


@pytest.mark.slow
def test_scanned_layers_gather_parameters_and_not_examples(runs: Any) -> None:
    kept, forgotten = (runs[" ".join(case)] for case in (KEPT, FORGOTTEN))
    assert kept["losses"] == pytest.approx(forgotten["losses"], rel=TOLERANCE)
    # Each parameter once forward and once backward at most; without the constraint it is twenty times their bytes.
    assert kept["facts"]["collectives"]["all-gather"]["bytes"] <= 2 * kept["parameter_bytes"]
    assert kept["facts"]["collectives"].keys() == {"all-gather", "all-reduce"}
    assert kept["facts"]["collectives"]["all-reduce"]["bytes"] <= 2 * kept["parameter_bytes"]
    assert forgotten["facts"]["collectives"]["all-gather"]["bytes"] > 10 * kept["parameter_bytes"]


@pytest.mark.slow
def test_products_that_devices_repeat_are_named_where_the_constraint_is_missing(runs: Any) -> None:
    forgotten = " ".join(FORGOTTEN)
    assert {name: run["repeated"] for name, run in runs.items() if run.get("repeated") and name != forgotten} == {}
    (sentence,) = runs[forgotten]["repeated"]
    assert "of the matrix products are repeated by several devices, most of them in layers.py" in sentence


@pytest.mark.slow
def test_the_gate_names_what_a_forgotten_constraint_sends(runs: Any) -> None:
    kept, forgotten = (runs[" ".join(case)]["facts"] for case in (KEPT, FORGOTTEN))
    known = KnownFacts(facts=(Facts.model_validate(kept),), source="the committed baseline")
    policy = POLICIES.for_facts("llama_tiny-mesh-cpu-f32-fsdp8", "train_step")
    assert policy is not None
    verdict = judge_facts("llama", "train_step", [record(0, facts=[forgotten])], known, policy)
    assert verdict.status == "regressed"
    assert "train_step is not compiled as in the committed baseline: collective all-gather " in verdict.explanation
    for kind, tally in forgotten["collectives"].items():
        was = kept["collectives"].get(kind, {"bytes": 0})["bytes"]
        line = f"collective {kind} output bytes {was:,} -> {tally['bytes']:,}"
        assert any(detail.startswith(line) for detail in verdict.details)


@pytest.mark.slow
def test_stages_of_a_pipeline_share_out_the_examples(runs: Any) -> None:
    piped, kept = runs[" ".join(PIPED)], runs[" ".join(KEPT)]
    assert piped["losses"] == pytest.approx(kept["losses"], rel=TOLERANCE)
    # XLA counts one tick, a quarter of the batch; where each device computes all examples it is 1.6 times fsdp8's.
    assert piped["facts"]["flops"] < 0.8 * kept["facts"]["flops"]
    assert piped["facts"]["collectives"].keys() == {"all-gather", "all-reduce", "collective-permute"}


@pytest.mark.slow
@pytest.mark.parametrize("case", TENSOR, ids=["unrolled", "scanned"])
def test_over_two_axes_each_message_stays_on_its_own(runs: Any, case: list[str]) -> None:
    messages, half = runs[" ".join(case)]["messages"], runs[" ".join(case)]["parameter_bytes"] / 2
    assert messages.keys() == {"all-gather/4", "all-reduce/2", "all-reduce/4"}  # none goes to all eight devices
    assert messages["all-gather/4"] <= 2 * half  # each device's half, once forward and once backward at most
    assert messages["all-reduce/4"] <= 1.05 * half  # its gradients, and losses


@pytest.mark.slow
@pytest.mark.parametrize("case", UNFIT, ids=" ".join)
def test_a_mesh_that_does_not_fit_is_named(runs: Any, case: tuple[str, ...]) -> None:
    assert UNFIT[case] in runs[" ".join(case)]["error"]


def test_the_documented_mesh_has_eight_devices() -> None:
    shape = parse_mesh("dp2.fsdp2.tp2")
    assert (shape, shape.size) == (MeshShape(dp=2, fsdp=2, tp=2), 8)


@given(st.integers(1, 512), st.integers(1, 512), st.integers(1, 512))
def test_a_mesh_survives_its_way_through_text(dp: int, fsdp: int, tp: int) -> None:
    shape = MeshShape(dp=dp, fsdp=fsdp, tp=tp)
    assert parse_mesh(str(shape)) == shape


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp2.fsp2", "part 'fsp2': .*did you mean 'fsdp'"),
        ("dp0", "part 'dp0'"),
        ("dp", "part 'dp'"),
        ("", "part ''"),
        ("dp2.dp2", "axis 'dp' is named twice"),
    ],
)
def test_a_wrong_mesh_is_named(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_mesh(text)


def test_flags_are_appended_only_where_needed() -> None:
    own = "--xla_cpu_enable_fast_math=false"
    assert render_xla_flags(own, 1) == own
    assert render_xla_flags("", 8) == "--xla_force_host_platform_device_count=8"
    assert render_xla_flags(own, 8) == f"{own} --xla_force_host_platform_device_count=8"
    chosen = "--xla_force_host_platform_device_count=16"
    assert render_xla_flags(chosen, 8) == chosen
