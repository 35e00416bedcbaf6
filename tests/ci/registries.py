"""A real registry of images on loopback, and images small enough to be made by hand."""

import io
import json
import os
import socket
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nightjar_ci.images.content.contents import LayerContents
from nightjar_ci.images.publish.layer_blob import DEFAULT, BlobWriter
from nightjar_ci.images.publish.pack import PackedImage, PackedLayer
from nightjar_ci.images.publish.push import Source
from nightjar_ci.images.tested import TestedImage
from nightjar_ci.web.registry import Repository
from tests.machine import REGISTRIES, find_program

SOURCE = Source(locks={}, builder="urn:nightjar:test", invocation=None)


@dataclass
class Registry:
    host: str
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def repository(self) -> Repository:
        return Repository(f"{self.host}/team/nightjar")


@contextmanager
def run_registry(folder: Path, *, options: dict[str, str] | None = None, wait_s: float = 60.0) -> Iterator[Registry]:
    program = find_program(*REGISTRIES)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{free.getsockname()[1]}"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.yml"
    config.write_text(json.dumps({"version": 0.1, "log": {"level": "error"}, "storage": {"filesystem": {}}}))
    variables = {
        "REGISTRY_HTTP_ADDR": host,
        "REGISTRY_STORAGE_FILESYSTEM_ROOTDIRECTORY": str(folder / "data"),
        "REGISTRY_STORAGE_DELETE_ENABLED": "true",
        **(options or {}),
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "serve", str(config)], env={**os.environ, **variables}, stdout=log, stderr=log
        )
    try:
        _wait(host, process, folder / "log", time.monotonic() + wait_s)
        yield Registry(host, folder, process)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait(host: str, process: subprocess.Popen[bytes], log: Path, deadline: float) -> None:
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(
                f"the registry ended with {process.returncode}, saying: {log.read_text()[-500:].strip()}"
            )
        try:
            with urllib.request.urlopen(f"http://{host}/v2/", timeout=5):
                return
        except urllib.error.HTTPError as error:
            error.close()
            return  # it wants a password: it runs
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"the registry does not answer, saying: {log.read_text()[-500:].strip() or 'nothing'}")


def make_image(
    folder: Path, repository: Repository, *, python: dict[str, str], platform: str = "linux/amd64", layer: bytes = b"x"
) -> PackedImage:
    folder.mkdir(exist_ok=True)
    with BlobWriter(folder) as writer:
        writer.feed(layer)
        blob = writer.finish()
    repository.put_blob(blob.digest, blob.path)
    system, architecture = platform.split("/")
    labels = {"org.opencontainers.image.revision": "1" * 40}
    config = {
        "os": system,
        "architecture": architecture,
        "created": "2026-11-20T00:00:00Z",
        "config": {"Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [blob.diff_id]},
        "history": [{"comment": json.dumps(python)}],
    }
    packed = PackedLayer(
        diff_id=blob.diff_id,
        digest=blob.digest,
        size_bytes=blob.size_bytes,
        contents=LayerContents(),
        compression=DEFAULT,
    )
    image = PackedImage(
        tags=("nightjar/jax:cpu",),
        config=json.dumps(config).encode(),
        layers=(packed,),
        platform=platform,
        labels=labels,
        python=python,
        system={"bash": "5.2"},
    )
    repository.put_blob(image.id, image.config)
    return image


def verdict_on(image: PackedImage, *failures: str) -> TestedImage:
    return TestedImage(tag=image.tags[0], id=image.id, passed=3, skipped=0, failures=failures)


def make_tar(files: Mapping[str, str | bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for path, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(path)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()
