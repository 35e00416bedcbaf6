import sys
from pathlib import Path

import pytest

from nightjar_profiling.errors import InputError, ToolError
from nightjar_profiling.readers.detect import find_kind, is_raw
from nightjar_profiling.readers.nsys import nsys_rep
from nightjar_profiling.readers.nsys.nsight import find_nsys
from nightjar_profiling.readers.nsys.nsys_rep import read_raw
from tests.profiling.builders import Hlo, hlo_proto
from tests.profiling.nsys_builders import archive_files, write_archive
from tests.profiling.nsys_sqlite_builder import SqliteBuilder, training_export
from tests.stand_ins import put_on_path

FAKE = """#!{python}
import os, shutil, sys
options = dict(one.lstrip("-").split("=", 1) for one in sys.argv[2:-1])
assert sys.argv[1] == "export" and options["type"] == "sqlite", sys.argv
if "FAKE_NSYS_FAILS" in os.environ:
    sys.exit("Importer error: this report is newer")
shutil.copyfile(sys.argv[-1] + ".exported", options["output"])
"""


@pytest.fixture
def fake_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    put_on_path(monkeypatch, tmp_path / "bin", {"nsys": FAKE.format(python=sys.executable)})
    return tmp_path / "bin" / "nsys"


def make_report(folder: Path) -> Path:
    report = folder / "run.nsys-rep"
    report.write_bytes(b"not documented")
    training_export().write(folder / "run.nsys-rep.exported")
    return report


@pytest.mark.usefixtures("fake_nsys")
def test_a_report_is_read_by_way_of_nsys_and_named_itself(tmp_path: Path) -> None:
    raw = read_raw(make_report(tmp_path))
    assert raw.tables["ops"].height == 6
    assert raw.warnings[0].startswith("run.nsys-rep: no HLO")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "run.nsys-rep", "run.nsys-rep.exported"]


@pytest.mark.usefixtures("fake_nsys")
def test_a_report_of_several_processes_finds_the_dump_of_each(tmp_path: Path) -> None:
    built = SqliteBuilder()
    for process, (program, name) in enumerate(((7, "jit_step"), (9, "jit_eval"))):
        thread = (100 + process) << 24 | 5
        built.range(f"XlaModule:#hlo_module={name},program_id={program}#", 0, 50, thread=thread)
        built.range("Thunk:#hlo_op=dot.1#", 5, 40, thread=thread)
        built.correlation = 0
        built.launch("gemm", 10, 100, 120, thread=thread, device=process)
        dump = tmp_path / f"rank{process:04}.dump"
        dump.mkdir()
        proto = hlo_proto({"entry": [Hlo("parameter.0"), Hlo("dot.1", frame=3)]}, name=name)
        dumped = dump / f"module_{program:04}.{name}.sm_9.0_gpu_after_optimizations.hlo.pb"
        dumped.write_bytes(proto.SerializeToString())
    (tmp_path / "job.nsys-rep").write_bytes(b"not documented")
    built.write(tmp_path / "job.nsys-rep.exported")
    raw = read_raw(tmp_path / "job.nsys-rep")
    ops = raw.tables["ops"].select("rank", "device", "program_id", "instruction")
    assert ops.sort("rank").rows() == [(0, 0, 7, "dot.1"), (1, 1, 9, "dot.1")]
    assert {number: program.name for number, program in raw.programs.items()} == {7: "jit_step", 9: "jit_eval"}
    assert raw.warnings == ()


@pytest.mark.usefixtures("fake_nsys")
def test_the_error_output_of_nsys_is_in_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NSYS_FAILS", "1")
    with pytest.raises(ToolError, match=r"(?s)run\.nsys-rep: .*exited with 1.*this report is newer") as caught:
        read_raw(make_report(tmp_path))
    assert caught.value.exit_code == 3


def test_without_nsys_the_hint_gives_the_export_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = make_report(tmp_path)
    monkeypatch.setattr(nsys_rep, "find_nsys", lambda environ: None)
    with pytest.raises(ToolError, match="nsys is not installed") as caught:
        read_raw(report)
    assert "nsys export --type sqlite run.nsys-rep" in str(caught.value)


def test_an_empty_report_is_named_before_nsys_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "run.nsys-rep").write_bytes(b"")
    with pytest.raises(InputError, match=r"run\.nsys-rep: is empty \(0 bytes\)"):
        read_raw(tmp_path / "run.nsys-rep")


def test_the_newest_installed_nsys_is_found_where_path_has_none(tmp_path: Path) -> None:
    for version in ("2024.2.1", "2025.9.1", "2025.10.1"):
        (tmp_path / "opt/nvidia/nsight-systems" / version / "bin").mkdir(parents=True)
        (tmp_path / "opt/nvidia/nsight-systems" / version / "bin" / "nsys").touch()
    found = find_nsys({"PATH": str(tmp_path)}, tmp_path)
    assert found == str(tmp_path / "opt/nvidia/nsight-systems/2025.10.1/bin/nsys")
    assert find_nsys({"PATH": str(tmp_path)}, tmp_path / "none") is None


def test_a_kind_is_found_by_name_or_by_content(tmp_path: Path) -> None:
    built = training_export()
    written = {
        "nsys SQLite": built.write(tmp_path / "mine.db"),
        "nsys-jax archive": write_archive(tmp_path / "mine.archive", archive_files()),
        "nsys report": make_report(tmp_path),
    }
    assert {name: find_kind(path).name for name, path in written.items()} == {name: name for name in written}
    assert all(is_raw(path) for path in written.values())
    (tmp_path / "capture").mkdir()
    assert not is_raw(tmp_path / "capture")
    with pytest.raises(InputError, match="neither a capture nor a raw trace"):
        find_kind(tmp_path / "capture")
