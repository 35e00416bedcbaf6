"""What lies in the layers, also where a later layer hides it? No cache, no log, nothing of the building machine."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import pytest
from docker.client import DockerClient

from nightjar_ci.images.access import find_certificates, render_access
from nightjar_ci.images.tree import Image

pytestmark = [pytest.mark.docker, pytest.mark.slow]

LEFTOVERS = re.compile(
    r"(run|tmp|var/tmp|root/\.cache|home/[^/]+/\.cache|var/cache|var/log|var/lib/apt/lists|source|locks|target|tools)/.+"
    r"|.*/(pip|uv)/cache/.*|etc/(uv|pip\.conf).*|.*-old|etc/(passwd|group|shadow|gshadow)-"
)
OWN_BUNDLE = "etc/ssl/certs/ca-certificates.crt"
READ_AT_MOST = 1_000_000


def read_layers(client: DockerClient, tag: str) -> Iterator[tuple[str, bytes | None]]:
    """Path of each file in each layer, and its bytes where it is small."""
    stream = io.BufferedReader(_Stream(client.images.get(tag).save()))
    with stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        for blob in archive:
            if not blob.isfile() or blob.name.endswith(".json"):
                continue
            try:
                layer = tarfile.open(fileobj=archive.extractfile(blob), mode="r|")  # noqa: SIM115
            except tarfile.ReadError:
                continue  # the image's configuration, which is no archive
            with layer:
                for member in layer:
                    if member.isfile():
                        small = member.size <= READ_AT_MOST
                        yield member.name.removeprefix("./"), _read(layer, member) if small else None


def _read(layer: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    return cast(IO[bytes], layer.extractfile(member)).read()


class _Stream(io.RawIOBase):
    """A file over the chunks of a download."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.chunks = iter(chunks)
        self.rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        self.rest = self.rest or next(self.chunks, b"")
        size = min(len(buffer), len(self.rest))
        buffer[:size], self.rest = self.rest[:size], self.rest[size:]
        return size


def find_leftovers(client: DockerClient, tag: str) -> list[str]:
    """What should not be in the layers of an image: path and reason."""
    certificates = find_certificates(os.environ)
    bundle = None if certificates is None else hashlib.sha256(certificates.read_bytes()).hexdigest()
    secrets = re.findall(rb"https?://[^\s']+", render_access(os.environ, certificates=False).encode())
    found, files = [], 0
    for path, content in read_layers(client, tag):
        files += 1
        if LEFTOVERS.fullmatch(path):
            found.append(f"{path}: of the build")
        if content is not None and any(secret in content for secret in secrets):
            found.append(f"{path}: names the index")
        # Debian's own bundle may be the one that this machine uses
        if content is not None and path != OWN_BUNDLE and hashlib.sha256(content).hexdigest() == bundle:
            found.append(f"{path}: the CA bundle of the machine")
    assert files, f"{tag}: no file was read"
    return found


def test_layers_hold_no_cache_log_or_secret(client: DockerClient, tree: tuple[Image, ...]) -> None:
    parents = {image.parent for image in tree}
    leaves = [image.tag for image in tree if image.name not in parents]  # the layers of a parent are in its children
    assert {tag: find_leftovers(client, tag) for tag in leaves} == {tag: [] for tag in leaves}


def test_a_secret_a_cache_and_a_log_are_found_where_they_are(
    client: DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://user:pass@mirror.example/simple")
    contents = {
        "ca.pem": "the machine's authorities",
        "opt/kept.pem": "the machine's authorities",
        "etc/pip.ini": "index-url = https://user:pass@mirror.example/simple",
        "root/.cache/uv/x": "",
        "var/log/apt.log": "",
        "usr/bin/fine": "",
    }
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        for path, text in contents.items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            archive.add(file, path)
    tag = "nightjar/test-leftovers:latest"
    client.api.import_image_from_file(str(tmp_path / "root.tar"), repository=tag)
    try:
        assert {entry.partition(":")[0] for entry in find_leftovers(client, tag)} == set(contents) - {"usr/bin/fine"}
    finally:
        client.images.remove(tag)
