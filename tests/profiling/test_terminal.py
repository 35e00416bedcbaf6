"""Names of a foreign trace on a terminal, and the descriptors of its format."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from nightjar_profiling.cli import main
from tests.places import ROOT
from tests.profiling import builders

EVIL = "/x/\x1b[2J\x1b]0;pwned\x07evil.py\u202e"


def test_a_file_name_in_a_trace_cannot_act(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = {number: (parent, EVIL, line, name) for number, (parent, _, line, name) in builders.FRAMES.items()}
    monkeypatch.setattr(builders, "FRAMES", frames)
    builders.training_trace().write(tmp_path / "trace")
    (trace,) = (tmp_path / "trace").rglob("*.xplane.pb")
    for words in (["report", str(trace), "--out", str(tmp_path / "capture")], ["summary", str(tmp_path / "capture")]):
        monkeypatch.setattr("sys.argv", ["nightjar-profiling", *words])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0
    said = capsys.readouterr()
    assert "evil.py" in said.out
    assert not {"\x1b", "\x07", "\u202e"} & set(said.out + said.err)


PROFILING = ROOT / "profiling"


@pytest.mark.skipif(find_spec("grpc_tools") is None, reason="grpcio-tools, which brings protoc, is not installed")
@pytest.mark.parametrize("name", ["xplane", "hlo"])
def test_generated_code_is_what_the_declarations_give(tmp_path: Path, name: str) -> None:
    protos = Path("nightjar_profiling/protos")
    options = ["-I", ".", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", str(protos / f"{name}.proto")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options], cwd=PROFILING, check=True)
    for suffix in ("_pb2.py", "_pb2.pyi"):
        fresh = (tmp_path / protos / f"{name}{suffix}").read_text()
        committed = (PROFILING / protos / f"{name}{suffix}").read_text()
        assert fresh == committed, f"{name}{suffix} is stale: see {protos}/__init__.py for the command"
