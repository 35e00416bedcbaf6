"""Masking of secrets in the output of a job.

In: names of secrets, and the caller's environment with their values. Out: a `Mask`, which replaces the values by `***`
in texts and in all files of a folder. It recognizes a value and its lines, also in base64 (at any offset, and across
line ends), quoted for a URL, and escaped as in JSON. It does not recognize compressed or encrypted values.
"""

from __future__ import annotations

import base64
import json
import mmap
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, quote_plus

from nightjar_ci.errors import InputError
from nightjar_ci.untrusted.files import walk_untrusted

STARS = "***"
SHORTEST = 4  # characters: a shorter value would occur, and be masked, in any text
_COPIED_BYTES = 2**20
_SNIFFED_BYTES = 8192  # a file with a NUL among its first bytes is binary, as in git


def make_mask(names: Iterable[str], environ: Mapping[str, str]) -> Mask:
    values = {name: environ.get(name, "") for name in names}
    if missing := [name for name, value in values.items() if not value]:
        raise InputError(
            f"the secret {' and '.join(missing)} is not set: expected an environment variable of that name.",
            "set it where nightjar-ci runs; in a workflow: env: {NAME: ${{ secrets.NAME }}}",
        )
    for name, value in values.items():
        if len(value) < SHORTEST or not _list_parts(value):
            raise InputError(
                f"the secret {name} has {len(value)} characters: expected at least {SHORTEST} in a line, because a "
                "shorter one cannot be masked.",
                "a value that is not secret belongs in 'env' or 'pass_env'",
            )
    return Mask(tuple(values.values()))


@dataclass(frozen=True, slots=True)
class Mask:
    """Replaces values by stars; without values it changes nothing.

    Attributes:
        longest: upper bound of the bytes of one spelling.
    """

    values: tuple[str, ...] = field(default=(), repr=False)
    longest: int = field(init=False, repr=False, compare=False)
    _pattern: re.Pattern[bytes] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        forms = sorted({form for value in self.values for form in _list_forms(value)}, key=len, reverse=True)
        object.__setattr__(self, "longest", max(map(len, forms), default=0))
        object.__setattr__(self, "_pattern", re.compile(b"|".join(forms)) if forms else None)

    def text(self, text: str) -> str:
        return self.bytes(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def bytes(self, text: bytes) -> bytes:
        if self._pattern is None:
            return text
        return self._pattern.sub(STARS.encode(), text)

    def listener(self, on_line: Callable[[str], None]) -> Callable[[str], None]:
        if self._pattern is None:
            return on_line
        return lambda line: on_line(self.text(line))

    @contextmanager
    def guard(self, folder: Path) -> Iterator[None]:
        """Masks the contents of a folder when the context ends, also after an exception."""
        try:
            yield
        finally:
            self.clean(folder)

    def clean(self, folder: Path) -> tuple[Path, ...]:
        """Masks the names and contents of all files in a folder; links are not followed.

        In a binary file a value is replaced by as many stars as it has bytes, so that the layout stays. A file that
        cannot be read or written is removed.

        Returns:
            The files that could neither be masked nor removed.
        """
        if self._pattern is None or not folder.exists():
            return ()
        left: list[Path] = []
        walked = list(walk_untrusted(folder, lambda error: left.append(Path(error.filename))))
        for parent, names in reversed(walked):  # a folder gets its name after what is in it
            for path in (parent / name for name in names):
                try:
                    self._clean_one(path)
                except OSError:
                    try:
                        path.unlink(missing_ok=True)
                    except OSError:
                        left.append(path)
        return tuple(left)

    def _clean_one(self, path: Path) -> None:
        assert self._pattern is not None
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode) and self._pattern.search(os.fsencode(path.readlink())):
            path.unlink()
            return
        if stat.S_ISREG(mode) and path.stat().st_size:
            _rewrite(path, self._pattern)
        name = self.text(path.name)
        if name != path.name:
            path.rename(_unused(path.with_name(name)))


NO_MASK = Mask()


def _rewrite(path: Path, pattern: re.Pattern[bytes]) -> None:
    """Masks a file; a file without secrets is not written, and none is read into memory as a whole."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
        if pattern.search(contents) is None:
            return
        binary = b"\0" in contents[:_SNIFFED_BYTES]
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".masked-")
        try:
            with os.fdopen(descriptor, "wb") as masked:
                copied = 0
                for start, end in [match.span() for match in pattern.finditer(contents)]:
                    _copy(contents, copied, start, masked)
                    masked.write(b"*" * (end - start) if binary else STARS.encode())
                    copied = end
                _copy(contents, copied, len(contents), masked)
            shutil.copymode(path, name)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _copy(contents: mmap.mmap, start: int, end: int, into: BinaryIO) -> None:
    for at in range(start, end, _COPIED_BYTES):
        into.write(contents[at : min(at + _COPIED_BYTES, end)])


def _unused(path: Path) -> Path:
    """The path, or the first one with a number that does not exist."""
    number, unused = 1, path
    while unused.exists():
        number, unused = number + 1, path.with_name(f"{path.name}.{number}")
    return unused


def _list_parts(value: str) -> Sequence[str]:
    """The parts of a value to mask: all of it, and each of its lines that is long enough."""
    lines = [line.strip() for line in value.splitlines()]
    return [part for part in dict.fromkeys((value, value.strip(), *lines)) if len(part) >= SHORTEST and part.strip()]


def _list_forms(value: str) -> Iterator[bytes]:
    for part in _list_parts(value):
        raw = part.encode("utf-8", "surrogateescape")
        yield re.escape(raw)
        yield re.escape(json.dumps(part)[1:-1].encode())
        yield re.escape(json.dumps(part, ensure_ascii=False)[1:-1].encode("utf-8", "surrogateescape"))
        for quoted in {quote(raw, safe=""), quote(raw), quote_plus(raw)}:
            yield re.sub(rb"%[0-9A-F]{2}", lambda found: b"(?i:%s)" % found[0], re.escape(quoted.encode()))
        for alphabet in (base64.b64encode, base64.urlsafe_b64encode):
            for offset in range(3):
                encoded = _encode_from(raw, offset, alphabet)
                yield rb"(?:\r?\n)?".join(re.escape(bytes([byte])) for byte in encoded)


def _encode_from(raw: bytes, offset: int, encode: Callable[[bytes], bytes]) -> bytes:
    """The base64 characters that depend on a value alone, for a start offset modulo three."""
    first = (0, 2, 3)[offset]
    return encode(b"\0" * offset + raw)[first : (offset + len(raw)) * 8 // 6]
