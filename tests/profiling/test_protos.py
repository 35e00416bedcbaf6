import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.places import ROOT

PROFILING = ROOT / "profiling"


@pytest.mark.skipif(find_spec("grpc_tools") is None, reason="grpcio-tools, which brings protoc, is not installed")
@pytest.mark.parametrize("name", ["xplane", "hlo", "pprof"])
def test_generated_code_is_what_the_declarations_give(tmp_path: Path, name: str) -> None:
    protos = Path("nightjar_profiling/protos")
    options = ["-I", ".", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", str(protos / f"{name}.proto")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options], cwd=PROFILING, check=True)
    for suffix in ("_pb2.py", "_pb2.pyi"):
        fresh = (tmp_path / protos / f"{name}{suffix}").read_text()
        committed = (PROFILING / protos / f"{name}{suffix}").read_text()
        assert fresh == committed, f"{name}{suffix} is stale: see {protos}/__init__.py for the command"
