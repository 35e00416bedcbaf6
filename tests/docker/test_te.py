"""What the te image is for, as far as a machine without a GPU can tell: TransformerEngine's JAX extension loads."""

from __future__ import annotations

import pytest

from tests.docker.conftest import Runner

pytestmark = pytest.mark.docker


def test_transformer_engine_for_jax_is_imported_and_its_recipes_are_there(run: Runner) -> None:
    code = """import transformer_engine.jax as te
from transformer_engine.common import recipe
print(recipe.DelayedScaling().margin, te.__name__)"""
    assert run("python", "-c", code, environment={"JAX_PLATFORMS": "cpu"}).split() == ["0", "transformer_engine.jax"]


def test_the_compiled_extension_registers_its_calls(run: Runner) -> None:
    code = "import transformer_engine.jax, transformer_engine_jax as x; print(len(x.registrations()))"
    assert int(run("python", "-c", code, environment={"JAX_PLATFORMS": "cpu"})) > 10


def test_cuda_home_leads_to_libraries(run: Runner) -> None:
    assert "libcudart.so" in run("sh", "-c", "ls $CUDA_HOME/lib64/")
