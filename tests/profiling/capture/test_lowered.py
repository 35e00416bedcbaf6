"""The hook that keeps programs before optimizations, with a compiler that is a fake."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from nightjar_profiling.capture.hook.lowered import keep_lowered
from nightjar_profiling.hlo.lowered import read_lowered
from nightjar_profiling.protos import hlo_pb2
from tests.profiling.builders import Hlo, hlo_proto


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A compiler that gives back its arguments, and a conversion that takes the module as it is."""
    module: Any = ModuleType("jax._src.compiler")
    module.compile_or_get_cached = lambda *args, **kwargs: (args, kwargs)
    converted = SimpleNamespace(
        mlir_module_to_xla_computation=lambda code: SimpleNamespace(as_serialized_hlo_module_proto=lambda: code)
    )
    lib: Any = ModuleType("jax._src.lib")
    lib.xla_client = SimpleNamespace(_xla=SimpleNamespace(mlir=converted))
    mlir: Any = ModuleType("jax._src.interpreters.mlir")
    mlir.module_to_bytecode = lambda computation: computation
    for name, fake in ((module.__name__, module), (lib.__name__, lib), (mlir.__name__, mlir)):
        monkeypatch.setitem(sys.modules, name, fake)
    return module


def test_what_is_compiled_is_kept_as_hlo_and_compiled_as_before(compiler: Any, tmp_path: Path) -> None:
    proto = hlo_proto({"main": [Hlo("parameter.0"), Hlo("sine.1", 2, ("parameter.0",), op_name="sin" * 200)]})
    proto.hlo_module.entry_computation_id = 1
    undo = keep_lowered(tmp_path / "7.lowered", lambda: True)
    assert compiler.compile_or_get_cached("cpu", proto.hlo_module.SerializeToString(), devices=3) == (
        ("cpu", proto.hlo_module.SerializeToString()), {"devices": 3},
    )  # fmt: skip
    (path,) = (tmp_path / "7.lowered").iterdir()
    kept = hlo_pb2.HloProto.FromString(path.read_bytes())
    assert kept == proto
    program = read_lowered(path.read_bytes(), "test")
    assert program is not None
    assert [operation.opcode for operation in program.operations] == ["sine"]
    undo()
    compiler.compile_or_get_cached("cpu", b"")
    assert len(list((tmp_path / "7.lowered").iterdir())) == 1


@pytest.mark.parametrize("arguments", [((), {}), (("cpu",), {}), (("cpu", object()), {}), (("cpu",), {"module": 3})])
def test_what_cannot_be_kept_never_reaches_the_program(
    compiler: Any, tmp_path: Path, arguments: tuple[tuple[Any, ...], dict[str, Any]]
) -> None:
    args, kwargs = arguments
    keep_lowered(tmp_path / "lowered", lambda: True)
    assert compiler.compile_or_get_cached(*args, **kwargs) == (args, kwargs)
    assert not (tmp_path / "lowered").exists()


def test_nothing_is_kept_where_it_is_not_wanted_or_jax_is_another(compiler: Any, tmp_path: Path) -> None:
    keep_lowered(tmp_path / "lowered", lambda: False)
    compiler.compile_or_get_cached("cpu", b"code")
    del compiler.compile_or_get_cached
    keep_lowered(tmp_path / "lowered", lambda: True)()
    assert not (tmp_path / "lowered").exists()
