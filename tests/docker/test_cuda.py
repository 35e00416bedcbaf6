"""What the cuda image and all above it hold: the libraries that JAX loads, from the wheels of the jax image's lock."""

import pytest

from tests.docker.conftest import Runner

pytestmark = pytest.mark.docker

LOAD = """
import ctypes, glob, json, sys
loaded = []
for name in sys.argv[1:]:
    found = glob.glob(f"/opt/nightjar/lib/python3*/site-packages/nvidia/**/{name}", recursive=True)
    ctypes.CDLL(found[0])
    loaded.append(name)
print(json.dumps(loaded))
"""


def test_libraries_that_need_no_driver_load(run: Runner) -> None:
    names = ["libcudart.so.1[23]", "libcublasLt.so.1[23]", "libcudnn.so.9", "libnccl.so.2", "libnvJitLink.so.1[23]"]
    for name in names:
        assert name in run("python", "-c", LOAD, name)


def test_the_libraries_of_an_rdma_fabric_load_and_name_their_adapters(run: Runner) -> None:
    load = "import ctypes; [ctypes.CDLL(name) for name in ('libibverbs.so.1', 'librdmacm.so.1')]; print('ok')"
    assert run("python", "-c", load).strip() == "ok"
    assert run("sh", "-c", "command -v ibv_devinfo").strip() == "/usr/bin/ibv_devinfo"


def test_libfabric_knows_efa_and_a_process_of_srun_finds_pmix(run: Runner) -> None:
    assert "efa:" in run("fi_info", "-l").splitlines()
    load = "import ctypes; [ctypes.CDLL(name) for name in ('libfabric.so.1', 'libpmix.so.2')]; print('ok')"
    assert run("python", "-c", load).strip() == "ok"
