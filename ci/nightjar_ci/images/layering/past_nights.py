"""Resolutions of past nights: the packages that a nightly image would have installed on a past day.

In: a lock's source (`docker/locks/*.in`), days, and this machine's package index. Out: the wheels of each night with
their sizes (HEAD requests). Resolutions and sizes are cached in a folder outside the checkout, since past nights do not
change. A night ends at 23:59:59 UTC.

Cost: one resolution per night (1 s, mostly waiting for the index; several run in parallel) and one HEAD request per new
wheel.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

from nightjar_ci.images.layering.replay import ResolvedNight, Wheel
from nightjar_ci.images.process import ToolError, run_captured
from nightjar_ci.web.http import HttpError, request

WORKERS = 6  # a resolution waits for the index most of its time
INDEX_HINT = "check the package index: it must send upload times (PEP 700); UV_DEFAULT_INDEX selects another"


@dataclass(slots=True, kw_only=True)
class PastNights:
    """A resolver of past nights, with a cache.

    Attributes:
        source: requirements, such as `docker/locks/jax-cuda12.in`.
        folder: cache of resolutions and sizes.
        python: such as `3.13`.
        platform: uv's name of the image's platform.
    """

    source: Path
    folder: Path
    python: str = "3.13"
    platform: str = "x86_64-manylinux_2_28"

    def resolve(self, days: Sequence[date], on_day: Callable[[date], None]) -> tuple[ResolvedNight, ...]:
        """The resolved nights of some days.

        Args:
            days: in order.
            on_day: called after each resolution.

        Raises:
            ToolError: uv is missing, a night does not resolve, or the size of a file is unknown.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        key = self._key()
        nights: list[list[tuple[str, str, str]]] = []
        with ThreadPoolExecutor(WORKERS) as pool:
            try:
                for day, text in zip(days, pool.map(lambda day: self._lock(day, key), days), strict=True):
                    on_day(day)
                    nights.append(read_pylock(text))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        sizes = self._read_sizes({url for files in nights for _, _, url in files})
        return tuple(
            ResolvedNight(
                day=day, wheels=tuple(sorted(Wheel(name, version, sizes[url]) for name, version, url in files))
            )
            for day, files in zip(days, nights, strict=True)
        )

    def _lock(self, day: date, key: str) -> str:
        cached = self.folder / f"pylock.{day}-{key}.toml"
        if not cached.is_file():
            path = os.pathsep.join((os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)))
            argv = render_resolve(self.source, day, python=self.python, platform=self.platform)
            _write(cached, run_captured(argv, variables={"PATH": path}, hint=INDEX_HINT))
        return cached.read_text()

    def _read_sizes(self, urls: set[str]) -> dict[str, int]:
        cache = self.folder / "sizes.json"
        sizes: dict[str, int] = json.loads(cache.read_text()) if cache.is_file() else {}
        missing = sorted({url for url in urls if _file_name(url) not in sizes})
        with ThreadPoolExecutor(WORKERS) as pool:
            sizes |= zip(map(_file_name, missing), pool.map(read_size, missing), strict=True)
        _write(cache, json.dumps(sizes, indent=0, sort_keys=True))
        return {url: sizes[_file_name(url)] for url in urls}

    def _key(self) -> str:
        key = b"\0".join((*_read_sources(self.source), self.python.encode(), self.platform.encode()))
        return hashlib.sha256(key).hexdigest()[:12]


def _read_sources(source: Path) -> list[bytes]:
    """The requirements of a file and of the files that it includes by `-r`, without comments."""
    lines = [line.partition("#")[0].strip() for line in source.read_text(encoding="utf-8").splitlines()]
    included = [source.parent / line.removeprefix("-r").strip() for line in lines if line.startswith("-r")]
    return ["\n".join(filter(None, lines)).encode(), *(text for path in included for text in _read_sources(path))]


def read_size(url: str) -> int:
    """The size of a file of the index in bytes, by a HEAD request.

    Raises:
        ToolError: the server does not send it.
    """
    try:
        _, headers = request(url, method="HEAD")
        return int(headers["Content-Length"])
    except (HttpError, TypeError, ValueError) as error:
        raise ToolError(f"{_file_name(url)}: cannot read its size: {error}.", INDEX_HINT) from None


def list_days(last: date, count: int) -> tuple[date, ...]:
    """The last `count` days up to and including `last`, in order.

    >>> [str(day) for day in list_days(date(2026, 3, 1), 2)]
    ['2026-02-28', '2026-03-01']
    """
    return tuple(last - timedelta(days=back) for back in range(count - 1, -1, -1))


def render_resolve(source: Path, day: date, *, python: str, platform: str) -> tuple[str, ...]:
    """The uv command that resolves a night.

    >>> " ".join(render_resolve(Path("a.in"), date(2026, 3, 1), python="3.13", platform="linux")[5:9])
    '--format pylock.toml --exclude-newer 2026-03-01T23:59:59Z'
    """
    return (
        *("uv", "pip", "compile", "--quiet", "--no-python-downloads"),
        *("--format", "pylock.toml", "--exclude-newer", f"{day}T23:59:59Z"),
        *("--python-version", python, "--python-platform", platform, "--no-header", "--no-annotate", str(source)),
    )


def read_pylock(text: str) -> list[tuple[str, str, str]]:
    """Name, version and URL of each package's wheel, or its source distribution if it has no wheel (PEP 751)."""
    files = []
    for package in tomllib.loads(text).get("packages", []):
        file = (package.get("wheels") or [package.get("sdist")])[0]
        if file is not None:
            files.append((package["name"], package["version"], file["url"]))
    return files


def _file_name(url: str) -> str:
    return unquote(urlsplit(url).path.rpartition("/")[2])


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
