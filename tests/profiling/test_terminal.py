"""Names of a foreign trace on a terminal, and the descriptors of its format."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from nightjar_profiling.cli import main
from tests.called import call
from tests.places import ROOT
from tests.profiling import builders

EVIL = "/x/\x1b[2J\x1b]0;pwned\x07evil.py\u202e"


def test_a_file_name_in_a_trace_cannot_act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = {number: (parent, EVIL, line, name) for number, (parent, _, line, name) in builders.FRAMES.items()}
    monkeypatch.setattr(builders, "FRAMES", frames)
    builders.training_trace().write(tmp_path / "trace")
    (trace,) = (tmp_path / "trace").rglob("*.xplane.pb")
    capture = tmp_path / "capture"
    done = [call(main, *words) for words in (("report", trace, "--out", capture), ("summary", capture))]
    assert [one.returncode for one in done] == [0, 0]
    assert "evil.py" in done[1].stdout
    assert not {"\x1b", "\x07", "\u202e"} & set("".join(one.stdout + one.stderr for one in done))


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
