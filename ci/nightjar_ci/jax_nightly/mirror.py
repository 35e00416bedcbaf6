"""A mirror of nightly wheels: a folder that keeps locked wheels after the index deletes them.

In: a day and a folder. Out: `FOLDER/PACKAGE/WHEEL` with an `index.html` for each package, so that any static web server
serves the folder as a simple index (PEP 503). Wheels are checked against the hash that the index gives.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path

from packaging.utils import parse_wheel_filename

from nightjar_ci.errors import InputError, NightjarError
from nightjar_ci.formats.documents import write_text
from nightjar_ci.web.http import HttpError, hide_passwords, request
from nightjar_ci.web.package_index import File


def keep_files(folder: Path, files: Iterable[tuple[str, File]], on_step: Callable[[str], None]) -> int:
    """Downloads the files that the folder lacks, or has with another hash than the index says.

    Returns: the number of downloaded bytes.
    """
    received, packages = 0, set()
    for package, file in files:
        packages.add(package)
        path = folder / package / file.name
        if path.is_file() and file.sha256 in (None, _digest(path)):
            continue
        on_step(f"downloading {file.name}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{os.getpid()}.part")  # two runs may fill one mirror
            request(file.url, target=part)
        except HttpError as error:
            raise NightjarError(f"{error}.", "the mirror keeps what it has; run the command again") from None
        digest = _digest(part)
        if file.sha256 not in (None, digest):
            part.unlink()
            address = hide_passwords(file.url)
            raise NightjarError(f"{address}: its SHA-256 is {digest}, but the index says {file.sha256}.")
        part.replace(path)
        received += path.stat().st_size
    for package in packages:
        write_text(folder / package / "index.html", _render_page(folder / package))
    return received


def read_mirror(folder: Path, package: str) -> list[File]:
    if not folder.is_dir():
        raise InputError(f"{folder} is not a mirror folder.", "make one with `images bump --nightly --mirror FOLDER`")
    return [
        File(name=path.name, uploaded=None, yanked=False, url=str(path.absolute()), sha256=_digest(path))
        for path in sorted((folder / package).glob("*.whl"))
    ]


def is_for_images(file: File, pythons: Iterable[str], machines: Iterable[str]) -> bool:
    """Whether an image of these Pythons and machines installs a wheel.

    >>> wheel = File(name="jaxlib-1.0-cp313-cp313-manylinux_2_27_x86_64.whl", uploaded=None, yanked=False)
    >>> is_for_images(wheel, ["3.13"], ["x86_64"]), is_for_images(wheel, ["3.12"], ["x86_64"])
    (True, False)
    """
    interpreters = {"py3", *(f"cp{python.replace('.', '')}" for python in pythons)}
    return any(
        tag.interpreter in interpreters
        and tag.abi == tag.abi.removesuffix("t")  # not of the free-threaded Python
        and (tag.platform == "any" or ("linux" in tag.platform and tag.platform.endswith(tuple(machines))))
        for tag in parse_wheel_filename(file.name)[3]
    )


def _render_page(folder: Path) -> str:
    wheels = sorted(folder.glob("*.whl"))
    links = (f'<a href="{escape(path.name)}#sha256={_digest(path)}">{escape(path.name)}</a><br>' for path in wheels)
    return "<!doctype html><html><body>\n" + "\n".join(links) + "\n</body></html>\n"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
