"""Probe of JAX, run as a separate program so that a JAX that hangs or crashes does not affect the doctor.

Out: one line of JSON on stdout: backend, devices, CUDA libraries (version compiled against, version loaded, file),
and failed imports. It imports nothing from Nightjar and preallocates no GPU memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import re
import sys
from typing import Any

# name -> prefix of functions in jax's _versions module, the file's name, how major, minor and patch make its number
# (the CUDA runtime's has no patch: 13.0.48 and 13.0.96 both say 13000); and whether JAX accepts one that is older
# than its build's
LIBRARIES = {
    "CUDA runtime": ("cuda_runtime", "libcudart", (1000, 10), True),
    "cuDNN": ("cudnn", "libcudnn.so", (10000, 100, 1), False),
    "cuBLAS": ("cublas", "libcublas.so", (10000, 100, 1), True),
    "cuFFT": ("cufft", "libcufft.so", (1000, 100, 1), False),
    "cuSPARSE": ("cusparse", "libcusparse.so", (1000, 100, 1), True),
}
COMPARED = 2  # numbers of a version that count: JAX itself ignores the patch


def split_number(number: int, scale: tuple[int, ...]) -> list[int]:
    """A library's version number, split into its parts.

    >>> split_number(91002, (10000, 100, 1)), split_number(12090, (1000, 10))
    ([9, 10, 2], [12, 9])
    """
    version = []
    for size in scale:
        part, number = divmod(number, size)
        version.append(part)
    return version


def ask_libraries() -> list[dict[str, Any]]:
    """The CUDA libraries, through the module that JAX's plugin brings; empty without a plugin."""
    versions = None
    for flavor in ("13", "12"):
        with contextlib.suppress(ImportError):
            versions = importlib.import_module(f"jax_cuda{flavor}_plugin._versions")
            break
    if versions is None:
        return []
    libraries = []
    for name, (prefix, file, scale, any_age) in LIBRARIES.items():
        entry: dict[str, Any] = {"name": name, "file": file}
        try:
            entry["compiled"] = split_number(getattr(versions, f"{prefix}_build_version")(), scale)[:COMPARED]
            entry["required"] = None if any_age else entry["compiled"]
            entry["loaded"] = split_number(getattr(versions, f"{prefix}_get_version")(), scale)
        except Exception as error:
            entry["error"] = str(error).splitlines()[0]
        libraries.append(entry)
    libraries.append(ask_nccl())
    return libraries


def ask_nccl() -> dict[str, Any]:
    """NCCL, which XLA loads by name when it is first needed."""
    entry: dict[str, Any] = {"name": "NCCL", "file": "libnccl.so"}
    number = ctypes.c_int()
    places = ["libnccl.so.2", *(os.path.join(path, "nvidia/nccl/lib/libnccl.so.2") for path in sys.path)]  # noqa: PTH118
    for place in places:
        try:
            ctypes.CDLL(place).ncclGetVersion(ctypes.byref(number))
        except OSError as error:
            entry.setdefault("error", str(error))
            continue
        entry.pop("error", None)
        entry["loaded"] = split_number(number.value, (10000, 100, 1))
        break
    return entry


def add_paths(libraries: list[dict[str, Any]]) -> None:
    """Adds which file each library was loaded from."""
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8") as maps:  # noqa: PTH123
        files = sorted({line.split(maxsplit=5)[-1].strip() for line in maps if "/" in line})
        for library in libraries:
            name = library.pop("file")
            library["path"] = next((file for file in files if re.search(rf"/{re.escape(name)}", file)), None)


def main() -> None:
    """Prints the facts as one line of JSON."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    answer: dict[str, Any] = {"backend": None, "devices": [], "failures": {}, "libraries": []}
    try:
        jax = importlib.import_module("jax")
        answer["devices"] = [device.device_kind for device in jax.local_devices()]
        answer["backend"] = jax.default_backend()
    except Exception as error:
        answer["failures"]["jax"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    for name in sys.argv[1:]:
        try:
            importlib.import_module(name)
        except Exception as error:
            answer["failures"][name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    answer["libraries"] = ask_libraries()
    add_paths(answer["libraries"])
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
