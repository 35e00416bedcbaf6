"""The release of JAX that removed a name, read from archives of an index."""

import io
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace

import pytest

from nightjar_ci.projects.removed import Removal, defines, find_missed_name, find_removal
from nightjar_ci.web.package_index import File
from tests.ci.servers import serve

DEPRECATED = """import typing
if typing.TYPE_CHECKING:
    from jax._src import old as old
else:
    _deprecations = {{"old": ("jax.lib.old is deprecated", {})}}
    __getattr__ = deprecation_getattr(__name__, _deprecations)
"""
SOURCES = {  # of jax/lib/__init__.py
    "0.1": "from jax._src import old\n",
    "0.2": DEPRECATED.format("_old"),
    "0.3": "from jax._src import old as _old\nold = _old\n",
    "0.4": DEPRECATED.format("None"),
    "0.5": "new = 1\n",
    "0.6rc1": "old = 1\n",
    "0.6": "new = 1\n",
}


def pack(version: str, source: str, *, wheel: bool) -> bytes:
    data = io.BytesIO()
    if wheel:
        with zipfile.ZipFile(data, "w") as archive:
            archive.writestr("jax/lib/__init__.py", source)
    else:
        with tarfile.open(fileobj=data, mode="w:gz") as archive:
            member = tarfile.TarInfo(f"jax-{version}/jax/lib/__init__.py")
            member.size = len(source)
            archive.addfile(member, io.BytesIO(source.encode()))
    return data.getvalue()


@pytest.fixture
def files() -> Iterator[list[File]]:
    """Releases of JAX in an index; the second and the fourth have no wheel."""
    names = {
        f"jax-{version}.tar.gz" if version in ("0.2", "0.4") else f"jax-{version}-py3-none-any.whl": version
        for version in SOURCES
    }

    def answer(method: str, path: str, authorization: str | None) -> tuple[int, dict[str, str], bytes]:
        name = path[1:]
        return 200, {}, pack(names[name], SOURCES[names[name]], wheel=name.endswith(".whl"))

    with serve(answer) as index:
        found = [File(name=name, uploaded=None, yanked=False, url=f"{index.url}/{name}") for name in names]
        yield [*found, replace(found[4], name="jax-0.3.1-py3-none-any.whl", yanked=True)]  # it would be the culprit


def test_the_first_release_without_a_name_is_found(files: list[File]) -> None:
    expected = Removal(name="jax.lib.old", last="0.3", release="0.4")
    for version in ("0.4", "0.5", "0.6"):
        assert find_removal("jax.lib", "old", files, version) == expected
    assert find_removal("jax.lib", "old", files, "0.3") is None  # it is there
    assert find_removal("jax.lib", "never", files, "0.6") is None
    assert find_removal("jax.lib", "old", files, "0.0.1") is None
    for last, gone in (("0.2", ("jax-0.4", "jax-0.3")), ("0.1", ("jax-0.4", "jax-0.3", "jax-0.2"))):
        found = find_removal("jax.lib", "old", [file for file in files if not file.name.startswith(gone)], "0.6")
        assert found == Removal(name="jax.lib.old", last=last, release="0.5")


def test_an_index_that_fails_gives_no_answer(files: list[File]) -> None:
    gone = [File(name=file.name, uploaded=None, yanked=False, url="http://127.0.0.1:1/x") for file in files]
    assert find_removal("jax.lib", "old", gone, "0.6") is None


@pytest.mark.parametrize(
    ("message", "missed"),
    [
        ("AttributeError: module 'jax._src.pjit' has no attribute 'pjit_p'", ("jax._src.pjit", "pjit_p")),
        ("ImportError: cannot import name 'xla_bridge' from 'jax.lib' (/a/b.py)", ("jax.lib", "xla_bridge")),
        ("ModuleNotFoundError: No module named 'jax.experimental.maps'", ("jax.experimental.maps", "")),
        ("AttributeError: jax.tree_map is deprecated: use jax.tree.map", ("jax", "tree_map")),
        ("AttributeError: jax.core.Var was removed in JAX v0.6.0", ("jax.core", "Var")),
        ("AttributeError: jax.xla_computation is deleted. Please use the AOT APIs", ("jax", "xla_computation")),
        ("ModuleNotFoundError: No module named 'jax'", None),
        ("AttributeError: module 'jaxopt' has no attribute 'x'", None),
    ],
)
def test_the_missed_name_is_read_from_the_message(message: str, missed: tuple[str, str] | None) -> None:
    assert find_missed_name(message) == missed


@pytest.mark.parametrize(
    ("source", "has"),
    [
        ("def x(): pass\n", True),
        ("class x: pass\n", True),
        ("try:\n    import x\nexcept ImportError:\n    pass\n", True),
        ("def x(): pass\nold = {'x': ('no (new) x', x)}\ndel x\n", True),  # its __getattr__ still has it
        ("from y import x as _x\nold = {\n'x': (\n('no (new) '\n'x'),\nNone,\n)}\ndel _x\n", False),
        ("import y as z  # not x\n", False),
        ("from y import *\n", None),
        ("x = (\n", None),
    ],
)
def test_a_module_has_the_names_that_its_code_mentions(source: str, has: bool | None) -> None:
    assert defines({"jax/a.py": source.encode()}, "jax.a", "x") is has
    assert defines({"jax/a/__init__.py": source.encode()}, "jax.a", "x") is has


def test_a_module_has_its_submodules() -> None:
    assert defines({"jax/a/x/__init__.py": b""}, "jax.a", "x") is True
    assert defines({}, "jax.a", "x") is False
    assert defines({"jax/a/x.py": b""}, "jax.a.x", "") is True
    assert defines({"jax/a.py": b"x = 1"}, "jax.a.x", "") is False
