import json
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar_profiling.errors import InputError
from nightjar_profiling.pipeline.ingest import make_tables
from nightjar_profiling.readers.nsys.nsys_export import read_sqlite
from tests.places import SHARED_DATA
from tests.profiling.builders import Hlo, hlo_proto
from tests.profiling.conftest import Run
from tests.profiling.nsys_sqlite_builder import PROCESS, THREAD, SqliteBuilder, training_export

DATA = SHARED_DATA / "nsys-sqlite"
REAL = DATA / "h100_2gpu_1s.sqlite"
RUN = ["program_id", "execution", "instruction", "kernel", "start_ns", "duration_ns", "launch_ns"]
PROGRAM = {"entry": [Hlo("parameter.0"), Hlo("dot.1", frame=3), Hlo("add.1", frame=2)]}
EXPECTED = [
    (7, run, instruction, kernel, 1000 * run + start, duration, 1000 * run + launch)
    for run in (0, 1)
    for instruction, kernel, start, duration, launch in (
        ("dot.1", "gemm", 200, 60, 10),
        ("dot.1", "splitk", 260, 10, 20),
        ("add.1", "add", 280, 5, 60),
    )
]


def test_a_kernel_is_that_of_the_thunk_and_the_program_run_that_launched_it(tmp_path: Path) -> None:
    raw = read_sqlite(training_export().write(tmp_path / "a.sqlite"))
    assert raw.tables["ops"].select(RUN).rows() == EXPECTED
    assert raw.tables["ops"]["thunk"].to_list() == [1, 1, 2, 4, 4, 5]
    assert raw.tables["executions"].rows() == [(0, 0, 7, 0, 200, 85, True), (0, 0, 7, 1, 1200, 85, True)]
    first = raw.tables["ranges"].row(0, named=True)
    assert (first["domain"], first["device_start_ns"], first["device_duration_ns"], first["n_ops"]) == (
        "TSL",
        200,
        85,
        3,
    )
    assert raw.warnings == (
        "a.sqlite: no HLO for 1 programs that ran (jit_step): expected in <name>.dump next to the export",
    )


def test_tables_with_the_suffix_of_a_later_version_are_found(tmp_path: Path) -> None:
    renamed = {"NVTX_EVENTS": "NVTX_EVENTS_V2", "CUPTI_ACTIVITY_KIND_KERNEL": "CUPTI_ACTIVITY_KIND_KERNEL_V12"}
    path = training_export().write(tmp_path / "a.sqlite", renamed)
    with closing(sqlite3.connect(path)) as base, base:
        base.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL_V2 (start, end)")
    assert read_sqlite(path).tables["ops"].select(RUN).rows() == EXPECTED


def test_dumped_hlo_beside_the_file_leads_to_python(tmp_path: Path) -> None:
    path = training_export().write(tmp_path / "a.sqlite")
    (tmp_path / "a.dump").mkdir()
    dumped = tmp_path / "a.dump" / "module_0007.jit_step.sm_9.0_gpu_after_optimizations.hlo.pb"
    dumped.write_bytes(hlo_proto(PROGRAM).SerializeToString())
    raw = read_sqlite(path)
    assert raw.warnings == ()
    tables = make_tables(raw)
    assert set(tables.attribution.select("instruction", "frame_id", "how").rows()) == {
        ("dot.1", 3, "own"),
        ("add.1", 2, "own"),
    }


def test_another_domain_is_not_taken_for_xla(tmp_path: Path) -> None:
    built = training_export().domain("mine", 4)
    built.range("XlaModule:#hlo_module=fake,program_id=9#", 12, 15, domain=4)
    raw = read_sqlite(built.write(tmp_path / "a.sqlite"))
    assert raw.tables["ops"].select(RUN).rows() == EXPECTED
    assert "mine" in raw.tables["ranges"]["domain"].to_list()


def test_a_report_that_ends_inside_a_program_run_says_so_and_keeps_its_ops(tmp_path: Path) -> None:
    built = training_export()
    built.range("XlaModule:#hlo_module=jit_step,program_id=7#", 2000, None, registered=True, domain=3)
    built.range("Thunk:#hlo_op=dot.1#", 2005, None, registered=True, domain=3)
    built.launch("gemm", 2010, 2200, 2230)
    raw = read_sqlite(built.write(tmp_path / "a.sqlite"))
    assert raw.tables["executions"]["complete"].to_list() == [True, True, False]
    assert raw.tables["ops"].row(-1)[2:5] == (7, 2, "dot.1")
    assert raw.tables["ranges"]["duration_ns"].to_list()[-2:] == [230, 225]  # open until the last kernel ended
    assert "a.sqlite: the trace ends during a run of jit_step" in raw.warnings


def test_a_report_that_begins_inside_a_program_run_says_so(tmp_path: Path) -> None:
    built = SqliteBuilder().range("Thunk:#hlo_op=dot.1#", 0, 50).launch("gemm", 10, 100, 130)
    raw = read_sqlite(built.write(tmp_path / "a.sqlite"))
    assert raw.tables["ops"].select("program_id", "instruction", "duration_ns").rows() == [(None, None, 30)]
    assert "1 thunk ops belong to no program" in raw.warnings[0]


@pytest.mark.parametrize("table", ["CUDA_GRAPH_EVENTS", "CUDA_GRAPH_NODE_EVENTS"])  # of nsys 2022.4; of 2024
def test_nodes_of_a_graph_have_the_thunk_that_made_them_in_every_launch(tmp_path: Path, table: str) -> None:
    built = SqliteBuilder().range("XlaModule:#hlo_module=jit_step,program_id=7#", 0, 1000)
    built.range("Thunk:#hlo_op=command_buffer#", 10, 900)
    for node, name, start in ((1, "dot.1", 20), (2, "add.1", 40)):
        built.range(f"Thunk:#hlo_op={name}#", start, start + 15).call(start + 2, start + 4, 90 + node)
        made = {"start": start + 5, "globalTid": THREAD, "graphNodeId": node, "originalGraphNodeId": None}
        built.add(table, **made)
        cloned = {"start": 60, "globalTid": THREAD, "graphNodeId": 10 + node, "originalGraphNodeId": node}
        built.add(table, **cloned)
    built.call(100, 110, 50)
    built.launch("gemm", 0, 200, 230, node=11, correlation=50).launch("add", 0, 230, 240, node=12, correlation=50)
    built.range("XlaModule:#hlo_module=jit_step,program_id=7#", 2000, 2500).range(
        "Thunk:#hlo_op=command_buffer#", 2010, 2400
    )
    built.call(2100, 2110, 51)
    built.launch("gemm", 0, 2200, 2230, node=11, correlation=51)
    raw = read_sqlite(built.write(tmp_path / "a.sqlite"))
    assert raw.tables["ops"].select("program_id", "execution", "instruction").rows() == [
        (7, 0, "dot.1"),
        (7, 0, "add.1"),
        (7, 1, "dot.1"),
    ]
    assert raw.tables["ops"]["thunk"].n_unique() == 3


def test_without_node_events_a_graph_is_that_of_its_launch(tmp_path: Path) -> None:
    built = SqliteBuilder().range("XlaModule:#hlo_module=jit_step,program_id=7#", 0, 1000)
    built.range("Thunk:#hlo_op=command_buffer#", 10, 900).launch("gemm", 100, 200, 230, node=11)
    raw = read_sqlite(built.write(tmp_path / "a.sqlite"))
    assert raw.tables["ops"].select("instruction", "graph_node").rows() == [("command_buffer", 11)]
    assert any("no creation events of CUDA graph nodes" in text for text in raw.warnings)


def test_a_graph_traced_as_a_whole_is_one_op_and_in_a_warning(tmp_path: Path) -> None:
    built = training_export()
    table = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
    built.call(62, 64, 99).add(table, start=300, end=400, deviceId=0, streamId=7, correlationId=99, globalPid=PROCESS)
    raw = read_sqlite(built.write(tmp_path / "a.sqlite"))
    graph = raw.tables["ops"].filter(pl.col("kind") == "graph")
    assert graph.select("instruction", "duration_ns").rows() == [("add.1", 100)]
    assert any("traced as a whole" in text for text in raw.warnings)


def test_copies_and_fills_are_ops_with_their_bytes(tmp_path: Path) -> None:
    built = SqliteBuilder()
    common = {"deviceId": 1, "streamId": 7, "correlationId": None, "globalPid": PROCESS}
    built.add("CUPTI_ACTIVITY_KIND_MEMCPY", start=5, end=9, bytes=64, copyKind=1, **common)
    built.add("CUPTI_ACTIVITY_KIND_MEMCPY", start=15, end=19, bytes=32, copyKind=77, **common)
    built.add("CUPTI_ACTIVITY_KIND_MEMSET", start=25, end=26, bytes=16, **common)
    ops = read_sqlite(built.write(tmp_path / "a.sqlite")).tables["ops"]
    assert ops.select("kind", "kernel", "device", "bytes", "duration_ns").rows() == [
        ("memcpy", "memcpy Host-to-Device", 1, 64, 4),
        ("memcpy", "memcpy of an unknown kind", 1, 32, 4),
        ("memset", "memset", 1, 16, 1),
    ]


def test_processes_are_ranks_by_number_or_as_their_launching_threads_tell(tmp_path: Path) -> None:
    other = (90 << 24) | 5
    built = SqliteBuilder()
    for thread, name in ((THREAD, "own"), (other, "other")):
        built.range(f"XlaModule:#hlo_module={name},program_id=7#", 0, 50, thread=thread)
        built.range("Thunk:#hlo_op=dot.1#", 5, 40, thread=thread)
        built.correlation = 0  # as each process counts its own
        built.launch(name, 10, 100, 120, thread=thread, device=1)
    ops = read_sqlite(built.write(tmp_path / "a.sqlite"), rank=2).tables["ops"]
    assert set(ops.select("rank", "kernel").rows()) == {(2, "other"), (3, "own")}
    for thread, rank in ((THREAD, 4), (other, 9)):
        name = f"XlaLauncher:#global=0,local=0,process={rank},partition=0#"
        built.add("ThreadNames", nameId=built.string(name), globalTid=thread, priority=0)
        ops = read_sqlite(built.write(tmp_path / f"{rank}.sqlite"), rank=2).tables["ops"]
        ranks = {"own": 4, "other": 9} if rank == 9 else {"own": 3, "other": 2}  # only if all of them tell
        assert set(ops.select("kernel", "rank").rows()) == set(ranks.items())


def test_a_range_that_ends_on_another_thread_holds_no_calls(tmp_path: Path) -> None:
    built = training_export().range("across", 0, 5000, kind=60, end_thread=THREAD + 1)
    built.range("around", 0, 5000, kind=60, end_thread=THREAD)
    ranges = read_sqlite(built.write(tmp_path / "a.sqlite")).tables["ranges"]
    assert dict(ranges.select("name", "n_ops").rows()) | {"across": None, "around": 6} == dict(
        ranges.select("name", "n_ops").rows()
    )


def test_compile_ranges_of_an_export_are_read(tmp_path: Path) -> None:
    built = SqliteBuilder().domain("TSL", 3)
    built.range("XlaCompile:#module=jit_step,program_id=7#", 0, 100, domain=3)
    built.range("XlaPass:#name=dce,module=jit_step,program_id=7#", 10, 40, domain=3)
    built.range("XlaEmitLlvmIr:#module=jit_step#", 50, 60, domain=3, thread=THREAD + 1)
    found = read_sqlite(built.write(tmp_path / "a.sqlite")).tables["compile"]
    assert found.select("thread", "parent_id", "program", "duration_ns", "self_ns").rows() == [
        (101, None, "jit_step", 100, 70),
        (101, 0, "jit_step", 30, 30),
        (102, 0, "jit_step", 10, 10),
    ]


def test_an_empty_file_and_one_that_is_not_a_database_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with pytest.raises(InputError, match=r"a\.sqlite: cannot be read: No such file"):
        read_sqlite(path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"a\.sqlite: is empty \(0 bytes\)"):
        read_sqlite(path)
    path.write_bytes(b"no database at all, but long enough to look at" * 100)
    with pytest.raises(InputError, match=r"a\.sqlite: cannot be read as an nsys export: file is not a database"):
        read_sqlite(path)


def test_a_truncated_database_is_refused_with_its_size(tmp_path: Path) -> None:
    path = training_export().write(tmp_path / "a.sqlite")
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes()[: whole - 4096])
    with pytest.raises(InputError, match=rf"a\.sqlite: truncated: {whole - 4096} of {whole} bytes\. Hint"):
        read_sqlite(path)


@settings(deadline=None, max_examples=30)
@given(st.floats(0.0, 1.0), st.binary(max_size=40))
def test_a_truncated_or_overwritten_database_is_an_error_or_a_part_of_the_truth(
    tmp_path_factory: pytest.TempPathFactory, share: float, noise: bytes
) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.sqlite"
    data = training_export().write(path).read_bytes()
    place = int(share * len(data))
    for bad in (data[:place], data[:place] + noise + data[place + len(noise) :]):
        path.write_bytes(bad)
        try:
            raw = read_sqlite(path)
        except InputError as error:
            named = "a.sqlite" in error.message
        else:
            named = raw.tables["ops"].height <= 6
        assert named


def test_an_sqlite_error_that_quotes_undecodable_bytes_is_an_input_error(tmp_path: Path) -> None:
    path = training_export().write(tmp_path / "a.sqlite")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"CREATE TABLE StringIds", b"CREATE TABLE \x89tri gIds"))
    with pytest.raises(InputError, match=r"a\.sqlite: cannot be read as an nsys export"):
        read_sqlite(path)


def test_a_table_may_have_any_name(tmp_path: Path) -> None:
    built = training_export().write(tmp_path / "a.sqlite")
    with closing(sqlite3.connect(built)) as base:
        base.execute('CREATE TABLE "two\nlines" (a)')
        base.execute('CREATE TABLE "" (a)')
    assert read_sqlite(built).tables["ops"].height == 6


def test_report_takes_an_export(run_command: Run, tmp_path: Path) -> None:
    path = training_export().write(tmp_path / "a.sqlite")
    (tmp_path / f"{path.stem}.dump").mkdir()
    dumped = tmp_path / f"{path.stem}.dump" / "module_0007.jit_step.gpu_after_optimizations.hlo.pb"
    dumped.write_bytes(hlo_proto(PROGRAM).SerializeToString())
    done = run_command("report", path.name, "--out", "out")
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/out/report.html\n"), done.stderr
    profile = json.loads((tmp_path / "out" / "profile.json").read_text())
    assert (profile["device_time_ns"], profile["direct_fraction"]) == (150, 1.0)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=8),
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), min_size=1, max_size=8),
)
def test_no_time_is_lost_whatever_the_ranges_are(
    tmp_path_factory: pytest.TempPathFactory, ranges: list[tuple[int, int]], kernels: list[tuple[int, int]]
) -> None:
    built = SqliteBuilder()
    titles = ("XlaModule:#hlo_module=m,program_id=1#", "Thunk:#hlo_op=a#", "other", "XlaModule:#hlo_module=n#")
    for number, (start, length) in enumerate(ranges):
        built.range(titles[number % 4], start, start + length)
    for at, duration in kernels:
        built.launch("k", at, 100 + at, 100 + at + duration)
    raw = read_sqlite(built.write(tmp_path_factory.mktemp("time") / "a.sqlite"))
    assert raw.tables["ops"]["duration_ns"].sum() == sum(duration for _, duration in kernels)
    assert raw.tables["executions"].select("program_id", "execution").is_unique().all()


@pytest.mark.skipif(not REAL.is_file(), reason=f"{REAL} is not there: NIGHTJAR_TEST_DATA names its folder")
def test_a_real_export_is_read_to_the_nanosecond() -> None:
    raw = read_sqlite(REAL)
    with closing(sqlite3.connect(f"file:{REAL}?mode=ro", uri=True)) as base:
        select = "SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_"
        counts, times = zip(*(base.execute(select + k).fetchone() for k in ("KERNEL", "MEMCPY", "MEMSET")), strict=True)
    ops = raw.tables["ops"]
    assert (ops.height, ops["duration_ns"].sum()) == (sum(counts), sum(times))
    assert make_tables(raw).device_time_ns == sum(times)
    assert set(ops.select("rank", "device").rows()) == {(0, 0), (1, 1)}
    assert raw.tables["ranges"]["n_ops"].drop_nulls().len() == 3242
