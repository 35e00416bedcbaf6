"""What the devel image is for: JAX is debugged and changed in its sources, and extensions of it are compiled."""

import pytest

from nightjar_ci.images.tree import Image
from tests.docker.conftest import CHECKOUT, Runner

pytestmark = pytest.mark.docker

HANDLER = """
#include "xla/ffi/api/ffi.h"
namespace ffi = xla::ffi;
static ffi::Error Double(ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y) {
  for (size_t i = 0; i < x.element_count(); ++i) y->typed_data()[i] = 2 * x.typed_data()[i];
  return ffi::Error::Success();
}
using Vector = ffi::Buffer<ffi::F32>;
XLA_FFI_DEFINE_HANDLER_SYMBOL(Twice, Double, ffi::Ffi::Bind().Arg<Vector>().Ret<Vector>());
"""
CMAKE = """
cmake_minimum_required(VERSION 3.25)
project(twice CXX)
add_library(twice SHARED twice.cc)
target_include_directories(twice PRIVATE ${JAX})
target_compile_features(twice PRIVATE cxx_std_17)
"""
CALL = """
import ctypes, jax, numpy as np
library = ctypes.cdll.LoadLibrary("/tmp/build/libtwice.so")
jax.ffi.register_ffi_target("twice", jax.ffi.pycapsule(library.Twice), platform="cpu")
twice = jax.ffi.ffi_call("twice", jax.ShapeDtypeStruct((3,), np.float32))
print(jax.jit(twice)(np.arange(3, dtype=np.float32)))
"""


def test_the_packages_of_the_list_are_installed(run: Runner) -> None:
    lines = (CHECKOUT / "docker" / "devel-packages.txt").read_text().splitlines()
    packages = [line.split()[0] for line in lines if line and not line.startswith("#")]
    status = run("dpkg-query", "--show", "--showformat", "${db:Status-Abbrev}\n", *packages).split()
    assert status == ["ii"] * len(packages)


def test_the_tools_start_as_any_user(run: Runner, image: Image) -> None:
    tools = ["gcc", "g++", "make", "cmake", "ninja", "gdb", "strace", "pkg-config", "py-spy", "nsys", "pytest"]
    tools += ["nvdisasm", "cuobjdump", "compute-sanitizer"]
    if "cuda" in image.tag:
        tools += ["ptxas", "nvlink"] if "cuda13" in image.tag else ["ptxas"]
    for tool in tools:
        assert run(tool, "--version", user="54321:54321", read_only=True)


@pytest.mark.parametrize("user", ["", "0"])
def test_an_edit_of_a_source_is_what_the_next_import_sees(run: Runner, user: str) -> None:
    edit = "for m in jax/jax/_src/core.py flax/flax/nnx/graph.py; do echo 'EDITED = 42' >>/opt/$m; done"
    show = "python -c 'import jax._src.core as c, flax.nnx.graph as g; print(c.EDITED + g.EDITED)'"
    on_top = show.replace("python", "/tmp/env/bin/python", 1)
    script = f"{show} 2>/dev/null; {edit} && {show} && python -m venv --system-site-packages /tmp/env && {on_top}"
    assert run("bash", "-c", script, user=user).split() == ["84", "84"]


def test_the_sources_are_those_of_the_installed_packages(run: Runner) -> None:
    """Each Python file that the wheels brought has the bytes that they brought."""
    code = """
import base64, hashlib, importlib.metadata as m
for name in ("jax", "flax"):
    for file in m.files(name):
        if file.suffix == ".py" and file.hash:
            digest = hashlib.sha256(file.locate().read_bytes()).digest()
            if base64.urlsafe_b64encode(digest).decode().rstrip("=") != file.hash.value:
                print(file)
"""
    assert run("python", "-c", code).split() == []


def test_a_test_of_flax_runs_from_its_sources(run: Runner) -> None:
    command = "cd /opt/flax && python -m pytest -q -p no:cacheprovider tests/nnx/variable_test.py"
    assert " passed" in run("bash", "-c", command)


def test_py_spy_and_gdb_look_into_a_process(run: Runner) -> None:
    spied = run("bash", "-c", "python -c 'import time; time.sleep(30)' & sleep 1; py-spy dump --pid $!; kill $!")
    assert "<module>" in spied
    script = "gdb -q -batch -ex run -ex bt --args python -c 'import os; os.abort()' 2>/dev/null"
    assert "Py_RunMain" in run("bash", "-c", script)


def test_an_extension_is_compiled_with_cmake_and_called_from_jax(run: Runner) -> None:
    write = f"mkdir -p /tmp/twice && cd /tmp/twice && cat >twice.cc <<'END'\n{HANDLER}\nEND\n"
    write += f"cat >CMakeLists.txt <<'END'\n{CMAKE}\nEND\ncat >call.py <<'END'\n{CALL}\nEND\n"
    build = "cmake -G Ninja -B /tmp/build -DJAX=$(python -c 'import jax; print(jax.ffi.include_dir())') . >/dev/null"
    script = f"{write}{build} && cmake --build /tmp/build >/dev/null && JAX_PLATFORMS=cpu python call.py"
    assert run("bash", "-c", script, user="1000:1000").strip() == "[0. 2. 4.]"


def test_a_kernel_is_compiled_by_nvcc_where_the_wheels_have_it(run: Runner, image: Image) -> None:
    if "cuda13" not in image.tag:
        pytest.skip("only the wheels of CUDA 13 hold nvcc")
    source = '#include <cstdio>\n__global__ void f(float* x) { x[threadIdx.x] += 1; }\nint main() { puts("linked"); }'
    script = f"cd /tmp && cat >x.cu <<'END'\n{source}\nEND\nnvcc -arch=sm_90 x.cu -o x && ./x"
    script += " && cuobjdump -sass x | grep -om 1 EXIT"
    assert run("bash", "-c", script, user="1000:1000").split() == ["linked", "EXIT"]
