"""An image with this machine's Python in it: made from its files, so that no registry is needed."""

import subprocess
import sys
import sysconfig
import tarfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PYTHON = Path(sys.executable).resolve()
_LEFT_OUT = frozenset(
    (
        "test",
        "site-packages",
        "dist-packages",
        "__pycache__",
        "idlelib",
        "tkinter",
        "ensurepip",
        "lib2to3",
        "pydoc_data",
    )
)


@contextmanager
def python_image(folder: Path) -> Iterator[str]:
    """The name of an image with Python and `sleep`, which is removed at the end."""
    library = Path(sysconfig.get_path("stdlib"))
    compiled = [*library.glob("lib-dynload/*.so")]
    archive = folder / "image.tar"
    with tarfile.open(archive, "w") as packed:
        for path in {Path("/bin/sleep"), *_find_linked([PYTHON, Path("/bin/sleep"), *compiled])}:
            packed.add(path.resolve(), str(path))
        packed.add(PYTHON, str(PYTHON))
        packed.add(library, str(library), filter=_filter)
    name = f"nightjar-test/python:{uuid.uuid4().hex[:8]}"
    subprocess.run(["docker", "import", str(archive), name], check=True, capture_output=True)
    try:
        yield name
    finally:
        subprocess.run(["docker", "image", "rm", "--force", name], check=True, capture_output=True)


def _find_linked(programs: list[Path]) -> set[Path]:
    listed = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=True).stdout
    words = {word for line in listed.splitlines() if line.startswith("\t") for word in line.split()}
    return {Path(word) for word in words if word.startswith("/")}


def _filter(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = Path(member.name).name
    if name in _LEFT_OUT or name.startswith("config-"):  # the latter is for programs that embed Python
        return None
    return member
