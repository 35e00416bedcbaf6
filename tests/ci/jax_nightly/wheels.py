"""Indexes of nightly JAX wheels on the loopback interface: wheels without code, whose names and metadata are real."""

import base64
import hashlib
import threading
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PYTHONS = ("3.12", "3.13")
LINUX = ("manylinux_2_27_x86_64", "manylinux_2_27_aarch64")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Says nothing."""


def write_wheel(folder: Path, name: str, version: str, tag: str, metadata: str, files: Mapping[str, str]) -> Path:
    stem = name.replace("-", "_")
    info = f"{stem}-{version}.dist-info"
    everything = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {tag}\n",
    }
    path = folder / name / f"{stem}-{version}-{tag}.whl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as wheel:
        record = ""
        for inside, text in everything.items():
            wheel.writestr(zipfile.ZipInfo(inside), text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
            record += f"{inside},sha256={digest},{len(text)}\n"
        wheel.writestr(zipfile.ZipInfo(f"{info}/RECORD"), record + f"{info}/RECORD,,\n")
    return path


def fill_jax(folder: Path, version: str, commit: str, pythons: Sequence[str] = PYTHONS) -> None:
    low = version.partition(".dev")[0] + ".dev0" if ".dev" in version else version
    extras = "".join(
        f"Provides-Extra: cuda{cuda}\nRequires-Dist: jax-cuda{cuda}-plugin[with-cuda]>={low} ; extra == 'cuda{cuda}'\n"
        for cuda in ("12", "13")
    )
    files = {"jax/version.py": f"_release_version: str = {version!r}\n_git_hash: str = {commit!r}\n"}
    write_wheel(folder, "jax", version, "py3-none-any", f"Requires-Dist: jaxlib<={version},>={low}\n{extras}", files)
    for machine in LINUX:
        for python in pythons:
            tag = f"cp{python.replace('.', '')}"
            write_wheel(folder, "jaxlib", version, f"{tag}-{tag}-{machine}", "", {})
            for cuda in ("12", "13"):
                needs = f"Requires-Dist: jax-cuda{cuda}-pjrt=={version}\nProvides-Extra: with-cuda\n"
                write_wheel(folder, f"jax-cuda{cuda}-plugin", version, f"{tag}-{tag}-{machine}", needs, {})
        for cuda in ("12", "13"):
            write_wheel(folder, f"jax-cuda{cuda}-pjrt", version, f"py3-none-{machine}", "", {})


def fill_day(
    folder: Path, date: str, commit: str = "a" * 40, lacking: str = "", pythons: Sequence[str] = PYTHONS
) -> str:
    """The wheels of a day, but those whose file name has `lacking` in it; returns their version."""
    version = f"2.0.0.dev{date.replace('-', '')}"
    fill_jax(folder, version, commit, pythons)
    if lacking:
        for path in folder.glob(f"*/*{version}*{lacking}*"):
            path.unlink()
    return version


@contextmanager
def serve(folder: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """A folder of packages as a plain index (PEP 503) that gives hashes and no upload times; its URL."""
    for project in filter(Path.is_dir, folder.iterdir()):
        links = (f'<a href="{p.name}#sha256={digest(p)}">{p.name}</a>' for p in sorted(project.glob("*.whl")))
        (project / "index.html").write_text(f"<!doctype html><html><body>{''.join(links)}</body></html>")
    server = ThreadingHTTPServer((host, 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://{host}:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
