"""What would a night of the past have installed? The resolver, told to know nothing newer than that night.

In: a lock's source (`docker/locks/*.in`), days, and the package index that this machine is configured for. Out: the
wheels of each night with their sizes, which the server of each file is asked for. Both are kept in a folder outside the
checkout and never asked for again: a past night does not change. A night ends at 23:59:59 UTC, wherever it is resolved.

Cost: one resolution a night (a second of CPU, mostly waiting for the index, so several at once) and one HEAD request
for each wheel that is new; it grows with the nights asked for, once.
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

AT_ONCE = 6  # a resolution waits for the index most of its time
INDEX_HINT = "is the package index reached, and does it tell upload times (PEP 700)? UV_DEFAULT_INDEX names another"


@dataclass(slots=True, kw_only=True)
class PastNights:
    """Resolves nights, and remembers.

    Attributes:
        source: requirements, such as `docker/locks/jax-cuda12.in`.
        folder: where resolutions and sizes are kept.
        python: such as `3.13`.
        platform: uv's name of the platform of the image.
    """

    source: Path
    folder: Path
    python: str = "3.13"
    platform: str = "x86_64-manylinux_2_28"

    def resolve(self, days: Sequence[date], on_day: Callable[[date], None]) -> tuple[ResolvedNight, ...]:
        """The nights of some days.

        Args:
            days: in order.
            on_day: called as each is resolved.

        Raises:
            ToolError: uv is missing, a night does not resolve, or a file's size cannot be had.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        key = self._key()
        nights: list[list[tuple[str, str, str]]] = []
        with ThreadPoolExecutor(AT_ONCE) as pool:
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
        kept = self.folder / f"pylock.{day}-{key}.toml"
        if not kept.is_file():
            path = os.pathsep.join((os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)))
            argv = render_resolve(self.source, day, python=self.python, platform=self.platform)
            _write(kept, run_captured(argv, variables={"PATH": path}, hint=INDEX_HINT))
        return kept.read_text()

    def _read_sizes(self, urls: set[str]) -> dict[str, int]:
        kept = self.folder / "sizes.json"
        known: dict[str, int] = json.loads(kept.read_text()) if kept.is_file() else {}
        missing = sorted({url for url in urls if _file_name(url) not in known})
        with ThreadPoolExecutor(AT_ONCE) as pool:
            known |= zip(map(_file_name, missing), pool.map(ask_size, missing), strict=True)
        _write(kept, json.dumps(known, indent=0, sort_keys=True))
        return {url: known[_file_name(url)] for url in urls}

    def _key(self) -> str:
        key = b"\0".join((*_read_sources(self.source), self.python.encode(), self.platform.encode()))
        return hashlib.sha256(key).hexdigest()[:12]


def _read_sources(source: Path) -> list[bytes]:
    """The requirements of a file and of those that it names by `-r`, without comments."""
    lines = [line.partition("#")[0].strip() for line in source.read_text(encoding="utf-8").splitlines()]
    named = [source.parent / line.removeprefix("-r").strip() for line in lines if line.startswith("-r")]
    return ["\n".join(filter(None, lines)).encode(), *(text for path in named for text in _read_sources(path))]


def ask_size(url: str) -> int:
    """The bytes of a file of the index, without fetching it.

    Raises:
        ToolError: the server does not say.
    """
    try:
        _, headers = request(url, method="HEAD")
        return int(headers["Content-Length"])
    except (HttpError, TypeError, ValueError) as error:
        raise ToolError(f"{_file_name(url)}: its size cannot be had: {error}.", INDEX_HINT) from None


def list_days(last: date, count: int) -> tuple[date, ...]:
    """That many days, the last one last.

    >>> [str(day) for day in list_days(date(2026, 3, 1), 2)]
    ['2026-02-28', '2026-03-01']
    """
    return tuple(last - timedelta(days=back) for back in range(count - 1, -1, -1))


def render_resolve(source: Path, day: date, *, python: str, platform: str) -> tuple[str, ...]:
    """The uv command that resolves a night.

    >>> " ".join(render_resolve(Path("a.in"), date(2026, 3, 1), python="3.13", platform="linux")[4:8])
    '--format pylock.toml --exclude-newer 2026-03-01T23:59:59Z'
    """
    return (
        *("uv", "pip", "compile", "--quiet", "--format", "pylock.toml", "--exclude-newer", f"{day}T23:59:59Z"),
        *("--python-version", python, "--python-platform", platform, "--no-header", "--no-annotate", str(source)),
    )


def read_pylock(text: str) -> list[tuple[str, str, str]]:
    """Name, version and address of the file of each package (PEP 751); the source where there is no wheel."""
    found = []
    for package in tomllib.loads(text).get("packages", []):
        file = (package.get("wheels") or [package.get("sdist")])[0]
        if file is not None:
            found.append((package["name"], package["version"], file["url"]))
    return found


def _file_name(url: str) -> str:
    return unquote(urlsplit(url).path.rpartition("/")[2])


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
