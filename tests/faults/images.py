"""A checkout of two small images, and an engine that has them: a `docker` that prints what it finds beside itself."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

from tests.ci.registries import make_tar

ENGINE = """#!/bin/sh
here=${0%/*}
for last in "$@"; do :; done
case "$*" in
*--print*) cat "$here/bake.json" ;;
"image ls"*) echo sha256:1 ;;
"image inspect"*) cat "$here/${last##*/}.json" ;;
save*) cat "$here/${last##*/}.tar" ;;
*) echo 28.2.2 ;;
esac
"""
SYSTEM = {"var/lib/dpkg/status": "Package: bash\nStatus: install ok installed\nVersion: 5.2-1\n"}
PYTHON = {"site-packages/jax-0.12.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: jax\nVersion: 0.12.0\n"}
LAYERS = {  # of each image, lowest first; the last one is not in order, so that a push sorts it
    "first": (SYSTEM,),
    "second": (SYSTEM, PYTHON, {"z": "z", "a": "a", "m": "m"}),
}


def make_images(folder: Path) -> None:
    """Fills a checkout: `docker/` with the tree and a lock, `bin/docker`, and the report of the images' tests."""
    engine, docker = folder / "bin", folder / "docker"
    (docker / "locks").mkdir(parents=True)
    engine.mkdir()
    (docker / "docker-bake.hcl").touch()
    pins = {"DEFAULT_PYTHON": {"default": "3.13"}, "DEFAULT_ARCH": {"default": "amd64"}}
    (docker / "versions.json").write_text(json.dumps({"variable": pins}))
    (docker / "locks" / "jax-cpu.txt").write_text(f"jax==0.12.0 \\\n    --hash=sha256:{'0' * 64}\n")
    (engine / "docker").write_text(ENGINE)
    (engine / "docker").chmod(0o755)
    targets, tested = {}, []
    for name, layers in LAYERS.items():
        tag = f"nightjar/{name}:cpu"
        image = _save(engine, name, tag, [make_tar(files) for files in layers])
        labels = {f"org.opencontainers.image.{key}": name for key in ("base.name", "description", "title")}
        targets[name] = {"tags": [tag], "labels": labels}
        tested.append({"tag": tag, "id": image, "passed": 2, "skipped": 0, "failures": []})
    (engine / "bake.json").write_text(json.dumps({"target": targets}))
    (folder / "tests.json").write_text(json.dumps({"images": tested}))


def _save(engine: Path, name: str, tag: str, layers: list[bytes]) -> str:
    """Writes what `docker save` and `docker image inspect` print of an image; its id."""
    digests = [hashlib.sha256(layer).hexdigest() for layer in layers]
    root = {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]}
    config = json.dumps(
        {"os": "linux", "architecture": "amd64", "created": "2026-11-20T00:00:00Z", "config": {}, "rootfs": root}
    ).encode()
    id_ = hashlib.sha256(config).hexdigest()
    paths = [f"blobs/sha256/{digest}" for digest in digests]
    manifest = json.dumps([{"Config": f"blobs/sha256/{id_}", "RepoTags": [tag], "Layers": paths}]).encode()
    contents = {**dict(zip(paths, layers, strict=True)), f"blobs/sha256/{id_}": config, "manifest.json": manifest}
    with tarfile.open(engine / f"{name}:cpu.tar", "w") as archive:
        for path, data in contents.items():
            member = tarfile.TarInfo(path)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    (engine / f"{name}:cpu.json").write_text(json.dumps([{"Id": f"sha256:{id_}"}]))
    return f"sha256:{id_}"
