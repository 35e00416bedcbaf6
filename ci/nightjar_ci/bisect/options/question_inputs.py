"""The files and environment variables that the result of a test depends on, as digests.

In: the command of a test, the working directory, the caller's variables. Out: SHA-256 by name. Python files are scanned
for imports of modules in the same folder, recursively; nothing is imported.
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from nightjar_ci.bisect.state import digest
from nightjar_ci.untrusted.inheritance import inherit, select

LARGEST_BYTES = 2**26  # largest file that counts: a larger one is data, slow to read and of little use
# Inherited variables that change a program's results or speed. Others, such as TERM or SLURM_JOB_ID, differ between two
# shells that ask the same question.
TELLING = (
    *("JAX_*", "XLA_*", "TF_*", "PJRT_*", "TPU_*", "LIBTPU_*", "CUDA_*", "CUDNN_*", "CUBLAS_*", "NVIDIA_*", "NVTE_*"),
    *("TRITON_*", "ROCM_*", "HIP_*", "NCCL_*", "NVSHMEM_*", "RCCL_*", "UCX_*", "GLOO_*", "OMP_*", "GOMP_*", "KMP_*"),
    *("MKL_*", "OPENBLAS_*", "MALLOC_*", "TCMALLOC_*", "GLIBC_TUNABLES", "LD_PRELOAD", "LD_LIBRARY_PATH"),
    *("PYTHONPATH", "PYTHONHASHSEED", "PYTHONOPTIMIZE", "FLAX_*", "OPTAX_*", "EQX_*", "KERAS_*"),
)


def digest_variables(environ: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """The inherited variables that may change a result.

    Args:
        names: names that `--pass-env` adds. Secrets are left out: not even their digests are written.
    """
    inherited = inherit(environ)
    telling = {
        name: value for name, value in inherited.items() if any(fnmatchcase(name, pattern) for pattern in TELLING)
    }
    return {name: digest(value) for name, value in sorted({**telling, **select(environ, names)}.items())}


def digest_files(command: Sequence[str], folder: Path) -> dict[str, str]:
    """The files that a command names, and the modules in their folders that they import.

    Args:
        command: a file may be an argument, or follow the `=` of an option; `-m MODULE` and `-c CODE` of Python import
            from `folder`.

    Returns:
        Path as the command names it, or relative to such a path, to SHA-256.
    """
    waiting = list(_named(command, folder))
    digests: dict[str, str] = {}
    while waiting:
        path, root = waiting.pop()
        if str(path) in digests or not (folder / path).is_file() or (folder / path).stat().st_size > LARGEST_BYTES:
            continue
        contents = (folder / path).read_bytes()
        digests[str(path)] = hashlib.sha256(contents).hexdigest()
        if path.suffix == ".py":
            waiting += [(module, root) for module in _imports(contents, path, root, folder)]
            waiting += [(path.with_name("conftest.py"), root)]
    return digests


def _named(command: Sequence[str], folder: Path) -> Iterator[tuple[Path, Path]]:
    """Files that a command names, each with the folder that its imports are looked up in first."""
    for before, part in zip(("", *command), command, strict=False):
        if before == "-m":
            yield from ((module, Path()) for module in _modules(part, Path(), folder))
            yield from ((module, Path()) for module in _modules(f"{part}.__main__", Path(), folder))
        elif before == "-c":
            yield from ((module, Path()) for module in _imports(part.encode(), Path("-c"), Path(), folder))
        for name in (part, part.partition("=")[2]):
            if name and not name.startswith("-") and len(name) < os.pathconf("/", "PC_PATH_MAX"):
                yield Path(name), Path(name).parent


def _imports(source: bytes, path: Path, root: Path, folder: Path) -> Iterator[Path]:
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return  # the test will say so itself
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _modules(alias.name, root, folder)
        elif isinstance(node, ast.ImportFrom):
            start = root
            if 0 < node.level <= len(path.parents):
                start = path.parents[node.level - 1]
            for alias in node.names:
                yield from _modules(".".join(filter(None, (node.module, alias.name))), start, folder)


def _modules(name: str, root: Path, folder: Path) -> Iterator[Path]:
    """Files that importing `a.b.c` may run: of a, of a.b, and of a.b.c."""
    path = root
    for part in name.split("."):
        path = path / part
        yield from (path.with_name(f"{part}.py"), path / "__init__.py")
        if not (folder / path).is_dir():
            return
