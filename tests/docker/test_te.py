"""What the te image is for, as far as a machine without a GPU can tell: TransformerEngine's JAX extension loads."""

import pytest

from tests.docker.conftest import Runner

pytestmark = pytest.mark.docker


# The driver's library comes from the machine with the GPU; the loader is content with any library of that name.
WITH_DRIVER = 'mkdir /tmp/d; ln -s /usr/lib/*/libz.so.1 /tmp/d/libcuda.so.1; LD_LIBRARY_PATH=/tmp/d python -c "$0"'


def python(run: Runner, code: str) -> list[str]:
    return run("sh", "-c", WITH_DRIVER, code, environment={"JAX_PLATFORMS": "cpu"}).split()


def test_transformer_engine_for_jax_is_imported_and_its_recipes_are_there(run: Runner) -> None:
    code = """import transformer_engine.jax as te
from transformer_engine.common import recipe
print(recipe.DelayedScaling().margin, te.__name__)"""
    assert python(run, code) == ["0", "transformer_engine.jax"]


def test_the_compiled_extension_registers_its_calls(run: Runner) -> None:
    code = "import transformer_engine.jax, transformer_engine_jax as x; print(len(x.registrations()))"
    assert int(python(run, code)[0]) > 10


def test_cuda_home_leads_to_libraries(run: Runner) -> None:
    assert "libcudart.so" in run("sh", "-c", "ls $CUDA_HOME/lib64/")
