import json
from dataclasses import replace
from pathlib import Path

import pytest

from nightjar_profiling.capture_folder.manifest import Manifest, read_manifest, write_manifest
from nightjar_profiling.capture_folder.tables import write_tables
from nightjar_profiling.errors import InputError, ProfilingError, SchemaError, explain
from tests.profiling.tabled import op, tables

MANIFEST = Manifest(
    backend="jax",
    command=("python", "train.py"),
    exit_code=0,
    steps=(1, 2),
    environment={"cwd": "/home/me"},
    raw=("raw/rank0000.xplane.pb",),
    sources=("/home/me/train.py",),
    user_code=(),
    warnings=(),
)


@pytest.mark.parametrize("manifest", [MANIFEST, replace(MANIFEST, steps=None, exit_code=None, command=())])
def test_a_manifest_comes_back_as_it_was_written(tmp_path: Path, manifest: Manifest) -> None:
    write_manifest(tmp_path, manifest)
    assert (read_manifest(tmp_path), (tmp_path / "manifest.json").stat().st_mode) == (manifest, 0o100644)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "nightjar.capture/2"}, "upgrade nightjar-profiling"),
        ({"schema": "nightjar.run/1"}, "expected 'nightjar.capture/1'"),
        ({"colour": "red"}, "unknown key: 'colour'"),
        ({"raw": 5}, "'raw' is 5, expected a JSON array"),
        ({"environment": []}, "expected a JSON object"),
        ({"steps": [1]}, "expected two integers or null"),
        ({"steps": ["a", "b"]}, "expected two integers or null"),
    ],
)
def test_a_foreign_manifest_is_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    write_manifest(tmp_path, MANIFEST)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(SchemaError if "schema" in change else InputError, match=message):
        read_manifest(tmp_path)


def test_a_truncated_or_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"manifest\.json: no such file"):
        read_manifest(tmp_path)
    write_manifest(tmp_path, MANIFEST)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text()[:40])
    with pytest.raises(InputError, match="not valid JSON"):
        read_manifest(tmp_path)
    with pytest.raises(InputError, match=r"manifest\.json: a file, expected the folder of a capture"):
        read_manifest(path)


def test_a_manifest_that_may_not_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(InputError, match=r"manifest\.json: cannot be read: Is a directory\. Hint: "):
        read_manifest(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_said_to_be_one_and_of_which_file(tmp_path: Path) -> None:
    (tmp_path / "ops.parquet").symlink_to("/dev/full")
    with pytest.raises(
        ProfilingError, match=r"ops\.parquet: cannot be written: .*No space left.*Hint: is the disk full"
    ):
        write_tables(tmp_path, tables(ops=[op("a", 0, 1)]))
    with pytest.raises(OSError, match="No space left") as raised, Path("/dev/full").open("w", buffering=1) as file:
        file.write("x\n")
    assert str(explain(raised.value)) == "No space left on device. Hint: make room, or name another folder with --out"
