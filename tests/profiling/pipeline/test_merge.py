import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar_profiling.capture_folder.manifest import Manifest, read_manifest, write_manifest
from nightjar_profiling.capture_folder.ranks import find_rank_folders
from nightjar_profiling.capture_folder.tables import read_tables
from nightjar_profiling.commands.merge import merge
from nightjar_profiling.commands.report import report
from nightjar_profiling.errors import InputError
from nightjar_profiling.pipeline.ingest import ingest
from nightjar_profiling.pipeline.merge import check_folders, merge_manifests, merge_tables
from nightjar_profiling.pipeline.opened import open_capture
from nightjar_profiling.report.render import describe
from tests.profiling.builders import TRAINING, Hlo, TraceBuilder, hlo_proto
from tests.profiling.conftest import Run

REDUCING = {
    "sum": [Hlo("parameter.1"), Hlo("add.1", frame=3, operands=("parameter.1",))],
    "entry": [Hlo("dot.1", frame=3), Hlo("all-reduce.1", frame=2, operands=("dot.1",), calls=("sum",))],
}


def rank_trace(late_ns: int, clock_ns: int = 0, program_id: int = 7) -> TraceBuilder:
    """Two executions of a dot and an all-reduce that ends at 1000 on a common clock, wherever the rank's own stands."""
    trace = TraceBuilder().hlo(program_id, hlo_proto(REDUCING))
    for run_id, start in ((1, clock_ns), (2, clock_ns + 2000)):
        trace.thunk("dot.1", start + late_ns, 100, run_id, program_id=program_id)
        trace.thunk("all-reduce.1", start + 100 + late_ns, 900 - late_ns, run_id, program_id=program_id)
    return trace


def capture_of(trace: TraceBuilder, folder: Path, warnings: tuple[str, ...] = ()) -> Path:
    trace.write(folder / "raw", "rank0000.xplane.pb")
    manifest = Manifest(backend="jax", command=("train",), exit_code=0, warnings=warnings)
    ingest(folder, manifest, copy_sources=False)
    return folder


def test_ranks_become_one_capture_with_clocks_and_waits(tmp_path: Path, run_command: Run) -> None:
    capture_of(rank_trace(0), tmp_path / "rank0")
    capture_of(rank_trace(300, clock_ns=50_000, program_id=9), tmp_path / "rank1")
    for rank in ("rank0", "rank1"):
        (tmp_path / rank / "sources").mkdir()
        (tmp_path / rank / "sources" / f"{rank}.py").touch()
    done = run_command("merge", "rank1", "rank0", "--out", "all")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "all" / "sources").iterdir()} == {"rank0.py", "rank1.py"}
    assert done.stdout.strip() == str(tmp_path / "all" / "report.html")
    capture = open_capture(tmp_path / "all")
    tables = capture.read()
    assert tables.programs.select("program_id", "name").rows() == [(7, "jit_step")]
    assert set(tables.ops["program_id"]) == {7}
    assert tables.clocks.select("rank", "offset_ns", "residual_ns").rows() == [(0, 0, 0), (1, -50_000, 0)]
    waits = tables.collectives.select("rank", "execution", "wait_ns").rows()
    assert waits == [(0, 0, 300), (0, 1, 300), (1, 0, 0), (1, 1, 0)]
    assert capture.profile is not None
    assert capture.profile["device_time_ns"] == tables.device_time_ns == 2 * 1000 + 2 * 700
    assert capture.profile["direct_fraction"] == 1.0
    assert capture.profile["warnings"] == []


@pytest.mark.parametrize("command", [("report", "log"), ("merge", "log"), ("merge", "log/plugins/profile/r", "rank1")])
def test_the_hosts_of_a_log_folder_become_one_capture(
    command: tuple[str, ...], tmp_path: Path, run_command: Run
) -> None:
    folder = tmp_path / "log" / "plugins" / "profile" / "r"
    folder.mkdir(parents=True)
    rank_trace(0).write(folder, "vm-0.xplane.pb")
    if "rank1" in command:
        capture_of(rank_trace(300, clock_ns=50_000, program_id=9), tmp_path / "rank1")
    else:
        rank_trace(300, clock_ns=50_000, program_id=9).write(folder, "vm-1.xplane.pb")
        TraceBuilder().hlo(7, hlo_proto(REDUCING)).write(folder, "vm-2.xplane.pb")
    done = run_command(*command, "--out", "all")
    assert done.returncode == 0, done.stderr
    capture = open_capture(tmp_path / "all")
    tables = capture.read()
    assert tables.programs.select("program_id", "name").rows() == [(tables.ops["program_id"][0], "jit_step")]
    assert sorted(tables.collectives["wait_ns"]) == [0, 0, 300, 300]
    assert capture.manifest is not None
    if "rank1" not in command:
        assert capture.manifest.environment["hosts"] == ["vm-0", "vm-1"]
        assert "hosts in order of rank: vm-0, vm-1" in (tmp_path / "all" / "report.html").read_text()
        assert "left out: " in done.stderr
        with pytest.raises(InputError, match="traces of 3 hosts, expected one"):
            open_capture(tmp_path / "log")


def test_a_merged_capture_is_reported_again_from_its_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capture_of(rank_trace(0), tmp_path / "job" / "rank0000")
    capture_of(rank_trace(300), tmp_path / "job" / "rank0001", ("The trace was cut off.",))
    out = tmp_path / "all"
    merge([tmp_path / "job"], out=out, as_json=True)
    first = json.loads(capsys.readouterr().out)
    manifest = (out / "manifest.json").read_text()
    (out / "report.html").unlink()
    report(out, out=None, user_code=None, as_json=True)
    said = capsys.readouterr()
    assert json.loads(said.out) == first
    assert "no raw trace: from the tables as they are" in said.err
    assert (out / "report.html").is_file()
    assert (out / "manifest.json").read_text() == manifest
    report(out, out=None, user_code=["flax"], as_json=True)
    hot = json.loads(capsys.readouterr().out)["hot_lines"]
    assert any(line["file"].endswith("flax/nnx/nn/linear.py") for line in hot)


def test_waits_in_concurrent_groups_are_distinguished_by_the_groups_of_the_program(tmp_path: Path) -> None:
    proto = hlo_proto(REDUCING)
    for one in proto.hlo_module.computations[1].instructions:
        if one.name == "all-reduce.1":
            one.replica_groups.add(replica_ids=[0, 2])
            one.replica_groups.add(replica_ids=[1, 3])
    folders = []
    for rank, late_ns in enumerate((0, 0, 40, 7)):
        trace = TraceBuilder().hlo(7, proto)
        for run_id in (1, 2):
            trace.thunk("all-reduce.1", 2000 * run_id + late_ns, 900 - late_ns, run_id)
        folders.append(capture_of(trace, tmp_path / f"rank{rank}"))
    alone = read_tables(folders[0] / "tables").collectives
    assert alone["group"].to_list() == alone["wait_ns"].to_list() == [None, None]
    assert not any("several groups" in warning for warning in merge_tables(folders, tmp_path / "all"))
    found = read_tables(tmp_path / "all").collectives.filter(execution=0).sort("rank")
    assert found.select("group", "wait_ns").rows() == [(0, 40), (1, 7), (0, 0), (1, 0)]


def test_a_folder_of_ranks_says_what_to_do_with_it(tmp_path: Path) -> None:
    for name in ("rank0000", "rank0010", "rank0002"):
        (tmp_path / "job" / name).mkdir(parents=True)
        (tmp_path / "job" / name / "manifest.json").write_text("{}")
    assert [path.name for path in find_rank_folders(tmp_path / "job")] == ["rank0000", "rank0002", "rank0010"]
    with pytest.raises(InputError, match=r"job: holds a capture for each of 3 ranks\.") as found:
        report(tmp_path / "job", out=None, user_code=None, as_json=False)
    assert "job --out all" in str(found.value.hint)
    with pytest.raises(InputError, match="3 ranks"):
        open_capture(tmp_path / "job")


def test_a_rank_that_traced_nothing_is_named(tmp_path: Path) -> None:
    capture_of(rank_trace(0), tmp_path / "rank0")
    manifest = merge_manifests([tmp_path / "rank0"], [])
    write_manifest(tmp_path / "rank1", manifest)
    with pytest.raises(InputError, match="rank1: this capture has no tables"):
        check_folders([tmp_path / "rank0", tmp_path / "rank1"], [])


def test_captures_with_the_tables_of_before_0_1_0_are_read_and_merged(tmp_path: Path) -> None:
    folders = [capture_of(rank_trace(0), tmp_path / name) for name in ("rank0", "rank1")]
    for folder in folders:
        (folder / "tables" / "avoidable.parquet").unlink()
        read_tables(folder / "tables").programs.write_parquet(folder / "tables" / "variants.parquet")
    merge_tables(folders, tmp_path / "all")
    tables = read_tables(tmp_path / "all")
    assert (tables.programs.height, tables.avoidable.height) == (1, 0)


def test_ranks_whose_autotuning_differed_share_a_program_with_a_warning(tmp_path: Path) -> None:
    folders = [capture_of(rank_trace(0), tmp_path / name) for name in ("rank0", "rank1", "rank2")]
    for folder, fingerprint in zip(folders, ("a", "b", "a"), strict=True):
        path = folder / "tables" / "programs.parquet"
        pl.read_parquet(path).with_columns(fingerprint=pl.lit(fingerprint)).write_parquet(path)
    (warning,) = merge_tables(folders, tmp_path / "all")
    assert warning == "jit_step: 2 variants of one structure, chosen by autotuning; first seen on rank0, rank1."
    assert read_tables(tmp_path / "all").programs.height == 1


LIBRARY = {
    **REDUCING,
    "entry": [Hlo("custom-call.5", frame=3), Hlo("all-reduce.1", frame=2, operands=("custom-call.5",), calls=("sum",))],
}


def test_a_product_that_autotuning_gave_to_a_library_on_one_rank_keeps_its_line_with_a_warning(tmp_path: Path) -> None:
    other = TraceBuilder().hlo(7, hlo_proto(LIBRARY))
    for run_id, start in ((1, 0), (2, 2000)):
        other.thunk("custom-call.5", start, 300, run_id).thunk("all-reduce.1", start + 300, 700, run_id)
    folders = [capture_of(rank_trace(0), tmp_path / "rank0"), capture_of(other, tmp_path / "rank1")]
    for folder, fingerprint in zip(folders, "ab", strict=True):
        path = folder / "tables" / "programs.parquet"
        pl.read_parquet(path).with_columns(fingerprint=pl.lit(fingerprint)).write_parquet(path)
    (warning,) = merge_tables(folders, tmp_path / "all")
    assert warning == (
        "jit_step: 2 variants with the same collectives, first seen on rank0, rank1: "
        "2 instructions are not on all ranks, such as custom-call.5, dot.1."
    )
    tables = read_tables(tmp_path / "all")
    assert tables.programs.height == 1
    assert tables.collectives.filter(rank=0)["wait_ns"].to_list() == [200, 200]
    assert tables.instructions.filter(name="custom-call.5")["opcode"].to_list() == ["custom-call"]
    (frame_id,) = tables.attribution.filter(instruction="custom-call.5")["frame_id"]
    assert tables.frames.filter(frame_id=frame_id)["line"].to_list() == [422]


def test_a_program_that_each_rank_compiled_twice_stays_two(tmp_path: Path) -> None:
    folders = []
    for name in ("rank0", "rank1"):
        trace = rank_trace(0).hlo(8, hlo_proto(REDUCING)).thunk("dot.1", 9000, 50, 3, program_id=8)
        folders.append(capture_of(trace, tmp_path / name))
    assert merge_tables(folders, tmp_path / "all") == []
    tables = read_tables(tmp_path / "all")
    assert sorted(tables.programs["program_id"]) == [7, 8]
    assert tables.executions.select("rank", "device", "program_id", "execution").is_unique().all()


def test_ranks_that_the_captures_name_are_kept(tmp_path: Path) -> None:
    folders = [capture_of(rank_trace(0), tmp_path / name) for name in ("a", "b")]
    for table in ("ops", "executions", "collectives"):
        path = folders[1] / "tables" / f"{table}.parquet"
        pl.read_parquet(path).with_columns(rank=pl.lit(1, pl.Int64)).write_parquet(path)
    merge_tables(folders, tmp_path / "all")
    assert read_tables(tmp_path / "all").ops["rank"].unique().sort().to_list() == [0, 1]


def test_differing_programs_under_one_id_are_kept_apart(tmp_path: Path) -> None:
    other = TraceBuilder().hlo(7, hlo_proto(TRAINING)).thunk("copy.1", 0, 8)
    folders = [capture_of(rank_trace(0), tmp_path / "rank0"), capture_of(other, tmp_path / "rank1")]
    merge_tables(folders, tmp_path / "all")
    tables = read_tables(tmp_path / "all")
    assert tables.programs["program_id"].to_list() == [7, 8]
    assert tables.ops.filter(rank=1).select("program_id", "instruction").rows() == [(8, "copy.1")]
    attributed = tables.attribution.filter(program_id=8).select("instruction", "frame_id", "how")
    assert attributed.rows() == [("copy.1", 3, "operand")]


def test_an_instruction_that_only_a_later_rank_ran_keeps_its_line(tmp_path: Path) -> None:
    proto = hlo_proto(TRAINING)
    first = TraceBuilder().hlo(7, proto).thunk("dot.1", 0, 5)
    second = TraceBuilder().hlo(7, proto).thunk("dot.1", 0, 5).thunk("add.1", 5, 6)
    folders = [capture_of(first, tmp_path / "rank0"), capture_of(second, tmp_path / "rank1")]
    merge_tables(folders, tmp_path / "all")
    tables = read_tables(tmp_path / "all")
    (frame_id,) = tables.attribution.filter(instruction="add.1")["frame_id"]
    (frame,) = tables.frames.filter(program_id=7, frame_id=frame_id).select("file", "line").rows()
    assert frame == ("/home/me/train.py", 4)
    assert tables.attribution.filter(instruction="dot.1").height == 1
    assert sorted(tables.scopes.group_by("instruction").len().iter_rows()) == [("add.1", 1), ("dot.1", 1)]
    assert tables.frames.select("program_id", "frame_id").is_unique().all()


@settings(max_examples=10, deadline=None)
@given(st.lists(st.lists(st.integers(0, 10**12), min_size=1, max_size=5), min_size=2, max_size=4))
@pytest.mark.slow
def test_no_nanosecond_is_lost_in_a_merge(tmp_path_factory: pytest.TempPathFactory, ranks: list[list[int]]) -> None:
    root = tmp_path_factory.mktemp("merge")
    folders = []
    for number, durations in enumerate(ranks):
        trace, start = TraceBuilder().hlo(7, hlo_proto(TRAINING)), 0
        for ns in durations:
            trace.thunk("dot.1", start, ns)
            start += ns
        folders.append(capture_of(trace, root / f"rank{number}"))
    merge_tables(folders, root / "all")
    ops = read_tables(root / "all").ops
    assert ops["duration_ns"].sum() == sum(map(sum, ranks))
    by_rank = dict(ops.group_by("rank").agg(pl.col("duration_ns").sum()).iter_rows())
    assert by_rank == {number: sum(durations) for number, durations in enumerate(ranks)}


def test_what_the_ranks_warned_of_is_kept_with_their_name(tmp_path: Path) -> None:
    folders = [
        capture_of(rank_trace(0), tmp_path / "rank0"),
        capture_of(rank_trace(0), tmp_path / "rank1", ("The trace was cut off.",)),
    ]
    assert merge_manifests(folders, ["x"]).warnings == ("rank1: The trace was cut off.", "x")


def test_the_head_of_a_merged_page_tells_of_all_ranks(tmp_path: Path) -> None:
    folders = []
    for number, flags in enumerate(("-a", "-b")):
        folders.append(capture_of(rank_trace(0), tmp_path / f"rank{number}"))
        told = {"rank": number, "devices": ["A100"], "versions": {"jax": "1"}, "flags": {"X": flags, "Y": "same"}}
        told["machine"] = {"host": f"node{number}", "cpu": "same"}
        write_manifest(folders[-1], replace(read_manifest(folders[-1]), environment=told))
    environment = merge_manifests(folders, []).environment
    assert environment == {
        "devices": ["A100", "A100"],
        "versions": {"jax": "1"},
        "machine": {"host": "differs by rank", "cpu": "same"},
        "flags": {"X": "differs by rank", "Y": "same"},
        "hosts": ["node0", "node1"],
    }
    assert describe(merge_manifests(folders, []))[0] == "2 x A100"


def test_a_rank_that_ran_less_is_in_a_warning(tmp_path: Path) -> None:
    short = TraceBuilder().hlo(7, hlo_proto(REDUCING)).thunk("dot.1", 0, 100)
    folders = [capture_of(rank_trace(0), tmp_path / "rank0"), capture_of(short, tmp_path / "rank1")]
    clocks, executions = merge_tables(folders, tmp_path / "all")
    assert clocks.startswith("The clocks of 1 of 2 devices are not aligned")
    assert executions.startswith("1 programs ran more often on some devices")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rank0",), "1 capture folder, expected one per rank"),
        (("rank0", "none"), "none: no such file or folder"),
        (("rank0", "./rank0"), "named twice"),
    ],
)
def test_a_failed_merge_is_named(tmp_path: Path, run_command: Run, arguments: tuple[str, ...], message: str) -> None:
    capture_of(rank_trace(0), tmp_path / "rank0")
    done = run_command("merge", *arguments, "--out", "all")
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "all").exists()


def test_a_capture_is_never_merged_into_itself(tmp_path: Path, run_command: Run) -> None:
    capture_of(rank_trace(0), tmp_path / "rank0")
    capture_of(rank_trace(0), tmp_path / "rank1")
    done = run_command("merge", "rank0", "rank1", "--out", "rank0")
    assert done.returncode == 2
    assert json.loads((tmp_path / "rank0" / "profile.json").read_text())["device_time_ns"] == 2000


def test_a_rank_without_a_table_is_named(tmp_path: Path) -> None:
    folders = [capture_of(rank_trace(0), tmp_path / name) for name in ("rank0", "rank1")]
    (folders[1] / "tables" / "ops.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"rank1/tables/ops.parquet: cannot be read"):
        merge_tables(folders, tmp_path / "all")


@pytest.mark.parametrize("name", ["ops", "executions", "collectives", "instructions"])
def test_a_table_with_damaged_pages_is_named_whoever_reads_it(tmp_path: Path, name: str) -> None:
    ranks = [capture_of(rank_trace(late), tmp_path / f"rank{late}") for late in (0, 5)]
    merge(ranks, tmp_path / "all")
    for folder in (ranks[1], tmp_path / "all"):
        path = folder / "tables" / f"{name}.parquet"
        data = path.read_bytes()
        pages = len(data) - int.from_bytes(data[-8:-4], "little") - 8  # the rest is the footer, which stays whole
        path.write_bytes(b"PAR1" + b"\xaa" * (pages - 4) + data[pages:])
    with pytest.raises(InputError, match=rf"rank5/tables/{name}\.parquet: cannot be read"):
        merge(ranks, tmp_path / "again")
    with pytest.raises(InputError, match=rf"all/tables/{name}\.parquet: cannot be read"):
        report(tmp_path / "all")


@pytest.mark.parametrize(("other", "together"), [((2, 5), (2, 5)), ((2, 6), None), (None, None)])
def test_the_traced_steps_are_those_of_all_ranks_or_of_none(
    tmp_path: Path, other: tuple[int, int] | None, together: tuple[int, int] | None
) -> None:
    folders = [capture_of(rank_trace(0), tmp_path / f"rank{number}") for number in range(2)]
    for folder, steps in zip(folders, ((2, 5), other), strict=True):
        write_manifest(folder, replace(read_manifest(folder), steps=steps))
    assert merge_manifests(folders, []).steps == together
