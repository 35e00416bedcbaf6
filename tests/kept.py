"""Programs that JAX compiled in tests, kept in the user's cache folder for the next run: half of models' CPU time.

A folder belongs to one jaxlib, one processor and one instruction set, so that no program is loaded where XLA would have
made another one. `commands` has the programs of commands that tests start, `process` those of the test processes, which
compile without optimization. JAX bounds the first; `prune` bounds the second, and deletes folders that nobody uses.
"""

import functools
import hashlib
import os
import platform
import re
import shutil
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

LIMIT_BYTES = 2 << 30
UNUSED_DAYS = 30
ISA = re.compile(r"--xla_cpu_max_isa=\S+")


ROOT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nightjar-tests"


@functools.cache
def find_folder() -> Path:
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.is_file() else [platform.processor()]
    told = sorted({line for line in lines if line.startswith(("flags", "Features", "model name", "CPU part"))} or lines)
    key = "\n".join([version("jax"), version("jaxlib"), *told, *ISA.findall(os.environ.get("XLA_FLAGS", ""))])
    return ROOT / hashlib.sha256(key.encode()).hexdigest()[:16]


def keep_in_process() -> None:
    """Lets JAX find in this process what test processes compiled before."""
    import jax
    from jax._src.lru_cache import LRUCache

    def put(cache: LRUCache, key: str, value: bytes) -> None:
        """Writes a program whole or not at all: JAX does so only with a limit, and then reads the folder each time."""
        path = Path(str(cache.path), f"{key}-cache")
        new = path.with_name(f".{key}-{os.getpid()}")
        new.write_bytes(value)
        new.replace(path)

    settings: Any = jax.config
    settings.update("jax_compilation_cache_dir", str(find_folder() / "process"))
    settings.update("jax_persistent_cache_min_compile_time_secs", 0)
    settings.update("jax_compilation_cache_include_metadata_in_key", True)
    settings.update("jax_traceback_in_locations_limit", 1)  # else a program is another one for each test that calls it
    cache_class: Any = LRUCache
    cache_class.put = put


def render_variables() -> dict[str, str]:
    """Variables with which commands keep what they compile; JAX writes with a lock only where the size has a limit."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(find_folder() / "commands"),
        "JAX_COMPILATION_CACHE_INCLUDE_METADATA_IN_KEY": "1",
        "JAX_COMPILATION_CACHE_MAX_SIZE": str(LIMIT_BYTES),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def prune(root: Path, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
    """Deletes folders unused for a month, programs of which a part was written, and the oldest over the limit."""
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    for other in root.iterdir():
        if other.stat().st_mtime < time.time() - UNUSED_DAYS * 86400:
            shutil.rmtree(other, ignore_errors=True)
    for program in folder.glob("commands/*-cache"):  # JAX writes the time of use last
        if not program.with_name(program.name.removesuffix("-cache") + "-atime").is_file():
            program.unlink(missing_ok=True)
    found = sorted(((path.stat(), path) for path in folder.glob("process/*")), key=lambda each: -each[0].st_mtime)
    size = 0
    for status, path in found:
        size += status.st_size
        if size > limit_bytes:
            path.unlink(missing_ok=True)
