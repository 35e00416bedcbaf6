import lzma
import os
import zipfile
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nightjar_profiling.analyses.roofline import read_peak
from nightjar_profiling.bytes import archive as archive_module
from nightjar_profiling.capture_folder.manifest import read_manifest
from nightjar_profiling.errors import InputError
from nightjar_profiling.pipeline.hosts import adopt
from nightjar_profiling.pipeline.ingest import ingest, make_tables
from nightjar_profiling.readers.annotations.xla_titles import read_titles
from nightjar_profiling.readers.nsys_jax import nsys_jax_ranges
from nightjar_profiling.readers.nsys_jax.nsys_jax import read_raw
from tests.profiling.builders import Hlo, hlo_proto
from tests.profiling.nsys_builders import (
    STEP,
    Host,
    Layout,
    Projected,
    archive_files,
    combine,
    launcher,
    module,
    parquet,
    thunk,
    write_archive,
)

PROGRAM = {"entry": [Hlo("parameter.0"), Hlo("dot.1", frame=3), Hlo("add.1", frame=2)]}


@pytest.mark.parametrize("layout", ["A", "B", "C"])
def test_an_archive_of_each_layout_gives_the_same_ops_and_executions(tmp_path: Path, layout: Layout) -> None:
    files = archive_files(layout=layout, programs=[(7, hlo_proto(PROGRAM))], threads=[launcher(TID_OF_STEP, 3, 1)])
    raw = read_raw(write_archive(tmp_path / "a.zip", files))
    ops = raw.tables["ops"].select(
        "rank", "device", "program_id", "execution", "instruction", "start_ns", "duration_ns"
    )
    assert ops.rows() == [(3, 1, 7, 0, "dot.1", 1000, 200), (3, 1, 7, 0, "add.1", 1210, 90)]
    assert raw.tables["executions"].rows() == [(3, 1, 7, 0, 1000, 300, None)]
    assert raw.programs[7].name == "jit_step"
    assert raw.warnings == ()


TID_OF_STEP = STEP[0].tid


def test_a_folder_with_the_contents_of_an_archive_is_read_like_it(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "a.zip", archive_files())
    with zipfile.ZipFile(path) as file:
        file.extractall(tmp_path / "a")
    assert read_raw(tmp_path / "a").tables["ops"].equals(read_raw(path).tables["ops"])


def test_of_nested_thunks_the_innermost_is_the_op_and_so_of_modules_its_program(tmp_path: Path) -> None:
    inner = Projected(number=9, title="XlaModule:#hlo_module=inner,program_id=8#", start=0, duration=50, parent=1)
    ranges = [module(1, 0, 100), inner, thunk(2, 9, "conditional", 0, 50), thunk(3, 2, "dot.1", 10, 20)]
    nccl = Projected(number=4, title="ncclGroupEnd", domain="NCCL", start=60, duration=5, parent=1)
    raw = read_raw(write_archive(tmp_path / "a.zip", archive_files([*ranges, nccl, thunk(5, 4, "add.1", 60, 5)])))
    assert raw.tables["ops"].select("program_id", "instruction").rows() == [(8, "dot.1"), (7, "add.1")]


def test_a_program_without_an_id_gets_one_below_zero_by_its_name(tmp_path: Path) -> None:
    ranges = [module(1, 0, 10, "gemm", None), thunk(2, 1, "dot.1", 0, 10), module(3, 20, 10), thunk(4, 3, "x", 20, 10)]
    tables = read_raw(write_archive(tmp_path / "a.zip", archive_files(ranges))).tables
    names = dict(tables["programs"].select("program_id", "name").iter_rows())
    assert names[7] == "jit_step"
    assert [number for number, name in names.items() if name == "gemm" and number < 0] == [
        tables["ops"]["program_id"][0]
    ]


def test_a_thunk_before_the_first_program_keeps_its_time_and_is_in_a_warning(tmp_path: Path) -> None:
    astray = Projected(number=9, title="Thunk:#hlo_op=dot.9#", start=100, duration=30)
    raw = read_raw(write_archive(tmp_path / "a.zip", archive_files([astray, *STEP])))
    assert raw.tables["ops"].row(0, named=True) | {"launch_ns": 0} == {
        **dict.fromkeys(raw.tables["ops"].columns),
        **{"rank": 0, "device": 0, "kernel": "dot.9", "start_ns": 100, "duration_ns": 30, "kind": "thunk", "thunk": 9},
        "launch_ns": 0,
    }
    assert "1 thunks belong to no program" in raw.warnings[0]


def test_a_last_run_that_did_less_than_all_before_it_is_not_complete(tmp_path: Path) -> None:
    ranges = [
        one
        for run in range(4)
        for one in (
            module(10 * run, 100 * run, 50),
            thunk(10 * run + 1, 10 * run, "dot.1", 100 * run, 20),
            *([thunk(10 * run + 2, 10 * run, "add.1", 100 * run + 20, 30)] if run < 3 else []),
        )
    ]
    ranges[-2] = module(30, 300, 20)
    raw = read_raw(write_archive(tmp_path / "a.zip", archive_files(ranges, layout="B")))
    assert raw.tables["executions"]["complete"].to_list() == [None, None, None, False]
    assert "jit_step looks incomplete" in raw.warnings[0]


def test_the_processes_of_a_combined_archive_are_ranks_that_share_a_program(tmp_path: Path) -> None:
    proto, other = hlo_proto(PROGRAM), hlo_proto(PROGRAM, name="jit_other")
    for one in (proto, other):
        one.hlo_module.frontend_attributes.map["fingerprint_before_lhs"] = one.hlo_module.name
    first = archive_files(threads=[launcher(TID_OF_STEP, 0, 0)], programs=[(7, proto), (9, other)])
    moved = [
        module(1, 1000, 300, program_id=9),
        *STEP[1:],
        module(4, 2000, 9, "jit_other", 7),
        thunk(5, 4, "x", 2000, 9),
    ]
    second = archive_files(moved, threads=[launcher(TID_OF_STEP, 1, 0)], programs=[(9, proto), (7, other)])
    raw = read_raw(write_archive(tmp_path / "c.zip", combine({"p0": first, "p1": second})))
    assert raw.tables["executions"].select("rank", "program_id").rows() == [(0, 7), (1, 7), (1, 10)]
    assert {number: program.name for number, program in raw.programs.items()} == {7: "jit_step", 10: "jit_other"}
    assert raw.tables["programs"]["program_id"].to_list() == [7, 10]
    assert raw.warnings == ()


def test_a_file_that_is_equal_in_all_processes_serves_all(tmp_path: Path) -> None:
    step, program = [module(1, 5000, 300), thunk(2, 1, "dot.1", 5000, 7)], [(7, hlo_proto(PROGRAM))]
    parts = {"p0": archive_files(programs=program), "p1": archive_files(step, programs=program)}
    raw = read_raw(write_archive(tmp_path / "c.zip", combine(parts)))
    assert raw.tables["ops"].select("rank", "duration_ns").rows() == [(0, 200), (0, 90), (1, 7)]
    assert len(raw.programs) == 1


def test_compile_ranges_of_a_pool_lie_below_the_range_that_waited_for_them(tmp_path: Path) -> None:
    host = [
        Host(number=1, name="TSL:XlaCompile:#module=jit_step,program_id=7#", start=0, duration=100),
        Host(
            number=2, name="TSL:XlaPass:#name=autotune,module=jit_step,program_id=7#", start=10, duration=80, parent=1
        ),
        Host(number=3, name="cuBLAS:cublasCreate_v2", start=12, duration=5, parent=2),
        Host(number=4, name="TSL:XlaCompileBackend:#module=gemm,program_id=9#", start=20, duration=30, tid=200),
        Host(number=5, name="TSL:XlaEmitLlvmIr:#module=gemm#", start=25, duration=5, parent=4, tid=200),
        Host(number=6, name="TSL:XlaCompileBackend:#module=late,program_id=9#", start=150, duration=5, tid=200),
        Host(number=7, name="TSL:Thunk:#hlo_op=dot.1#", start=160, duration=5),
    ]
    tables = read_raw(write_archive(tmp_path / "a.zip", archive_files(host=host))).tables
    columns = ("range_id", "parent_id", "program", "duration_ns", "self_ns")
    assert tables["compile"].select(columns).rows() == [
        (1, None, "jit_step", 100, 20),
        (2, 1, "jit_step", 80, 80),
        (4, 2, "gemm", 30, 25),
        (5, 4, "gemm", 5, 5),
    ]
    assert tables["ranges"].height == 7
    assert tables["ranges"].filter(pl.col("range_id") == 3).row(0)[2:6] == ("cuBLAS", 3, 2, "cublasCreate_v2")


@pytest.mark.parametrize(
    ("title", "instruction"),
    [
        ("Thunk:#hlo_op=dot.1#", "dot.1"),
        ("Thunk:#name=jit(f)/a[x=1,hlo_op=no]#b,hlo_op=dot.1#", "dot.1"),
        ("Thunk:#name=f,hlo_op=all-gather-start.3,unique_hlo_op_id=12#", "all-gather-start.3"),
        ("Thunk:#name=f#", None),
        ("XlaPass:#name=hlo_op=x#", None),
    ],
)
def test_the_instruction_is_looked_for_from_the_right_of_a_title(title: str, instruction: str | None) -> None:
    assert read_titles(pl.Series([title]))["instruction"][0] == instruction


def test_hlo_of_another_program_and_missing_hlo_are_in_warnings(tmp_path: Path) -> None:
    ranges = [*STEP, module(4, 5000, 10, "jit_init", 8), thunk(5, 4, "x", 5000, 10)]
    files = archive_files(ranges, programs=[(7, hlo_proto(PROGRAM, name="jit_else"))])
    warnings = read_raw(write_archive(tmp_path / "a.zip", files)).warnings
    assert "program 7 ran as 'jit_step', but its HLO is 'jit_else'" in warnings[0]
    assert "no HLO in dump/ for 1 programs that ran (jit_init)" in warnings[1]


def test_an_archive_without_threads_or_host_ranges_names_what_is_missing(tmp_path: Path) -> None:
    files = archive_files()
    kept = {"nvtx_gpu_proj_trace/trace.parquet": files["nvtx_gpu_proj_trace/trace.parquet"]}
    raw = read_raw(write_archive(tmp_path / "a.zip", kept))
    assert raw.tables["ops"].height == 2
    assert ["no thread-metadata" in raw.warnings[0], "compilation is not shown" in raw.warnings[1]] == [True, True]


BAD_TRACE = {"nvtx_gpu_proj_trace/trace.parquet": b"PAR1nonsense"}
NEWER_TRACE = {"nvtx_gpu_proj_trace/trace.parquet": parquet(pl.DataFrame({"Newer": [1]}))}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"readme.txt": b"x"}, r"a\.zip: holds no nvtx_gpu_proj_trace"),
        (BAD_TRACE, r"trace\.parquet \(12 bytes\) is not a valid Parquet file"),
        (NEWER_TRACE, r"unknown layout, columns \['Newer'\]"),
        ({**archive_files(), "../../evil": b"x"}, r"a\.zip: contains a path outside of the archive: '\.\./\.\./evil'"),
        ({**archive_files(), "/etc/evil": b"x"}, "outside of the archive"),
        ({**archive_files(), "report_nvtx_pushpop_trace.csv.xz": b""}, r"csv\.xz: truncated"),
        ({**archive_files(), "report_nvtx_pushpop_trace.csv.xz": b"a,b\n"}, "not valid xz data"),
        ({**archive_files(), "dump/module_0007.f.gpu_after_optimizations.hlo.pb": b"\x0a\xff"}, "not an HLO protobuf"),
        (
            {**archive_files(), "dump/module_0007.f.gpu_after_optimizations.hlo.pb": b""},
            r"contains no HLO module \(0 bytes",
        ),
        (archive_files([module(4, 0, 10), thunk(4, 4, "dot.1", 0, 5)]), "range ids are not unique"),
        (archive_files([thunk(n, n % 3 + 1, "dot.1", n, 5) for n in (1, 2, 3)]), "a range is its own ancestor"),
        (archive_files([thunk(1, 1, "dot.1", 0, 5)]), "a range is its own ancestor"),
    ],
)
def test_a_damaged_archive_is_refused_with_the_reason(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_raw(write_archive(tmp_path / "a.zip", files))


@pytest.mark.parametrize(("data", "message"), [(b"", "not a zip file .0 bytes."), (b"PK\3\4", "not a zip file")])
def test_a_file_that_is_not_an_archive_is_refused_by_name(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(data)
    with pytest.raises(InputError, match=rf"a\.zip: {message}"):
        read_raw(path)


def test_a_zip_bomb_is_refused_by_declared_and_real_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = write_archive(tmp_path / "a.zip", {"a": bytes(1 << 20), "b": b""})
    with archive_module.Archive(bomb, 1000) as opened, pytest.raises(InputError, match="a has at least 1048576 bytes"):
        opened.read("a")
    with archive_module.Archive(bomb, 1 << 20) as opened:
        assert len(opened.read("a")) == 1 << 20
        assert opened.left_bytes == 0
    lying = bytearray(bomb.read_bytes())
    for place in (lying.find(b"PK\1\2") + 24, 22):  # the declared size, in the directory and before the data
        lying[place : place + 4] = (100).to_bytes(4, "little")
    bomb.write_bytes(bytes(lying))
    with archive_module.Archive(bomb, 1000) as opened, pytest.raises(InputError, match="cannot be read: Bad CRC-32"):
        opened.read("a")


def test_a_zip_bomb_is_refused_by_its_ratio_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_module, "FREE_BYTES", 1000)
    path = write_archive(tmp_path / "a.zip", {"zeros": bytes(1 << 20), "noise": os.urandom(1 << 20), "few": bytes(999)})
    with archive_module.Archive(path) as opened:
        with pytest.raises(InputError, match=r"zeros has 1\d{3} bytes compressed and 1048576 decompressed.*zip bomb"):
            opened.read("zeros")
        assert (len(opened.read("noise")), len(opened.read("few"))) == (1 << 20, 999)


def test_the_gpus_of_an_archive_are_named_and_so_is_the_peak_of_its_roofline(tmp_path: Path) -> None:
    name = "NVIDIA A100-SXM4-40GB"
    table = pl.DataFrame({"('TARGET_INFO_GPU', 'id')": [0, 1], "('TARGET_INFO_GPU', 'name')": [name, name]})
    files = {**archive_files(programs=[(7, hlo_proto(PROGRAM))]), "device-metadata.parquet": parquet(table)}
    path = write_archive(tmp_path / "a.zip", files)
    whole = read_raw(path)
    assert whole.devices == (name,)
    damaged = read_raw(write_archive(tmp_path / "damaged.zip", {**files, "device-metadata.parquet": b"PAR1 cut"}))
    assert damaged.devices == ()
    assert damaged.tables["ops"].equals(whole.tables["ops"])
    assert any("device-metadata.parquet (8 bytes) is not a valid Parquet file" in text for text in damaged.warnings)
    folder = tmp_path / "capture"
    (folder / "raw").mkdir(parents=True)
    ingest(folder, adopt(path, folder, []), copy_sources=False)
    assert read_manifest(folder).environment["devices"] == [name]
    peak = read_peak(read_manifest(folder).environment)
    assert peak is not None
    assert peak.name == name
    assert f"1 x {name}" in (folder / "report.html").read_text()


def test_an_xz_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys_jax_ranges, "LARGEST_BYTES", 100)
    with pytest.raises(InputError, match="more than 100 bytes when decompressed"):
        read_raw(write_archive(tmp_path / "a.zip", archive_files()))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 3), st.floats(0.0, 1.0), st.binary(max_size=40), st.booleans())
def test_a_truncated_or_overwritten_file_of_an_archive_is_an_error_or_a_part_of_the_truth(
    tmp_path_factory: pytest.TempPathFactory, number: int, share: float, noise: bytes, cut: bool
) -> None:
    host = [Host(number=one, name="TSL:XlaCompile:#module=jit_step#", start=one, duration=9) for one in range(3)]
    files = archive_files(host=host, threads=[launcher(TID_OF_STEP, 0, 0)], programs=[(7, hlo_proto(PROGRAM))])
    name = sorted(files)[number]
    packed = name.endswith(".xz")  # a checksum would find every change: what is packed is changed
    data = lzma.decompress(files[name]) if packed else files[name]
    place = int(share * len(data))
    bad = data[:place] if cut else data[:place] + noise + data[place + len(noise) :]
    files[name] = lzma.compress(bad) if packed else bad
    path = write_archive(tmp_path_factory.mktemp("bad") / "a.zip", files)
    try:
        tables = make_tables(read_raw(path))
    except InputError as error:
        sound = "a.zip" in error.message
    else:
        sound = tables.ops.height <= 2
    assert sound


def test_a_file_without_a_name_is_passed_over_and_one_whose_compression_is_damaged_is_named(tmp_path: Path) -> None:
    files = archive_files()
    path = write_archive(tmp_path / "a.zip", {"x": b"x", **files})
    zipped = bytearray(path.read_bytes())
    for lengths in (26, zipped.index(b"PK\1\2") + 28):  # of name and further fields, in the file's two headers
        assert zipped[lengths : lengths + 4] == b"\1\0\0\0"
        zipped[lengths : lengths + 4] = b"\0\0\1\0"
    path.write_bytes(zipped)
    assert read_raw(path).tables["ops"].height == 2
    with zipfile.ZipFile(tmp_path / "b.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("nvtx_gpu_proj_trace/trace.parquet", b"0123456789" * 100)
    data = bytearray((tmp_path / "b.zip").read_bytes())
    data[30 + len("nvtx_gpu_proj_trace/trace.parquet") + 4] = 0xFF  # how the coder of LZMA is set up
    (tmp_path / "b.zip").write_bytes(data)
    with pytest.raises(InputError, match=r"b\.zip: nvtx_gpu_proj_trace/trace\.parquet in it cannot be read"):
        read_raw(tmp_path / "b.zip")


def test_a_line_of_the_host_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    files = archive_files(host=[Host(number=1, name="TSL:XlaCompile:#module=jit_step#", start=0, duration=9)])
    name = "report_nvtx_pushpop_trace.csv.xz"
    files[name] = lzma.compress(lzma.decompress(files[name]) + b",,1,,,:1\n")
    assert read_raw(write_archive(tmp_path / "a.zip", files)).tables["ranges"].height == 1
