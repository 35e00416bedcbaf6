import gzip
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from itertools import permutations
from pathlib import Path

import pytest

from nightjar_ci.images.publish.pack import Packer, is_ordered, write_ordered
from nightjar_ci.images.publish.push import open_scratch
from nightjar_ci.web.registry import digest_of
from tests.ci.registries import make_tar
from tests.stand_ins import put_on_path

HOLD = """
import sys, time
from nightjar_ci.images.publish.push import open_scratch
with open_scratch("nightjar-test-") as folder:
    (folder / "blob").write_text("x")
    print(folder, flush=True)
    time.sleep(600)
"""


def test_the_next_run_removes_only_what_a_killed_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "nightjar-test-of-somebody").mkdir()  # without a lock: not known to be ours
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD], env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        folders = [Path(process.stdout.readline().strip()) for process in processes if process.stdout]
        processes[0].send_signal(signal.SIGKILL)
        processes[0].wait()
        with open_scratch("nightjar-test-") as folder:
            assert not folders[0].exists()
            assert (folders[1] / "blob").exists()
        assert not folder.exists()
        assert (tmp_path / "nightjar-test-of-somebody").exists()
    finally:
        for process in processes:
            process.kill()
            process.communicate()


NAMES = ("a/", "a/b", "a/b.h", "a.h", "b/")


def make_layer(names: tuple[str, ...]) -> io.BytesIO:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name in names:
            member = tarfile.TarInfo(name.rstrip("/"))
            member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            data = b"" if name.endswith("/") else name.encode() * 300
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return layer


def write(layer: io.BytesIO) -> bytes:
    parts: list[bytes] = []
    write_ordered(layer, parts.append)
    return b"".join(parts)


def test_every_order_gives_the_same_bytes() -> None:
    written = {hashlib.sha256(write(make_layer(names))).hexdigest() for names in permutations(NAMES)}
    assert len(written) == 1


def test_the_bytes_are_those_of_the_layer_that_was_in_order() -> None:
    layer = make_layer(NAMES)
    assert write(layer) == layer.getvalue()  # the blocks after the last entry, too
    with tarfile.open(fileobj=io.BytesIO(write(make_layer(NAMES[::-1])))) as tar:
        assert tar.getnames() == [name.rstrip("/") for name in NAMES]
        for member in tar.getmembers():
            if member.isfile():
                content = tar.extractfile(member)
                assert content is not None
                assert content.read() == member.name.encode() * 300


def test_a_layer_in_order_needs_no_sorting_and_one_with_hard_links_is_left() -> None:
    assert is_ordered([(name, False) for name in NAMES])
    assert is_ordered([("a", False), ("a", False)])
    assert not is_ordered([("b", False), ("a", False)])
    assert is_ordered([("b", False), ("a", True)])
    assert is_ordered([])


def test_an_engine_that_saves_compressed_layers_gives_the_same_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Docker does with containerd's image store, the default of a new engine since release 29."""
    layers = [make_layer(names).getvalue() for names in (NAMES, NAMES[::-1])]
    config = {"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": list(map(digest_of, layers))}}
    put_on_path(monkeypatch, tmp_path, {"docker": '#!/bin/sh\ncat "$0.tar"\n'})
    packed = set()
    for kind in ("plain", "compressed", "cached"):
        saved = layers if kind == "plain" else [gzip.compress(layer, mtime=0) for layer in layers]
        blobs = {f"blobs/sha256/{digest_of(layer)[7:]}": layer for layer in saved}
        entry = {"Config": "config.json", "RepoTags": ["me/x:1"], "Layers": list(blobs)}
        documents = {"config.json": json.dumps(config), "manifest.json": json.dumps([entry])}
        (tmp_path / "docker.tar").write_bytes(make_tar({**blobs, **documents}))
        has_all = kind == "cached"
        packer = Packer(tmp_path, tmp_path / "cache", lambda _: has_all, lambda *_: None, lambda _: None)  # noqa: B023
        packed.add(packer.pack(["me/x:1"])["me/x:1"].manifest)
    assert len(packed) == 1
