"""What lies in the layers, also where a later layer hides it? No cache, no log, nothing of the building machine."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import pytest
from docker.client import DockerClient

from nightjar_ci.images.access import find_certificates, render_access
from nightjar_ci.images.engine_archive import read_members, save_images
from nightjar_ci.images.faults import find_bad_modes, find_bad_variables
from nightjar_ci.images.process import run_captured
from nightjar_ci.images.tree import Image

pytestmark = [pytest.mark.docker, pytest.mark.slow]

LEFTOVERS = re.compile(
    r"(run|tmp|var/tmp|root/\.cache|home/[^/]+/\.cache|var/cache|var/log|var/lib/apt/lists|source|locks|target|tools)/.+"
    r"|.*/(pip|uv)/cache/.*|etc/(uv|pip\.conf).*|.*-old|etc/(passwd|group|shadow|gshadow)-"
)
OWN_BUNDLE = "etc/ssl/certs/ca-certificates.crt"
READ_AT_MOST = 1_000_000
COPIES = 3  # an archive, a layout and an unpacked root
SPARED_BYTES = 10_000_000_000  # of the disk, for everybody else


def read_entries(tag: str) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
    """Each entry of each layer of an image, and its bytes where it is a small file."""
    with save_images([tag]) as files:
        for file in files:
            for tar, member in read_members(file.stream) if file.is_layer else ():
                small = member.isfile() and member.size <= READ_AT_MOST
                yield member, cast(IO[bytes], tar.extractfile(member)).read() if small else None


def find_faults(client: DockerClient, tag: str) -> list[str]:
    """What should not be in an image: leftovers and secrets in its layers, bad modes, bad names of variables."""
    certificates = find_certificates(os.environ)
    bundle = None if certificates is None else hashlib.sha256(certificates.read_bytes()).hexdigest()
    secrets = re.findall(rb"https?://[^\s']+", render_access(os.environ, certificates=False).encode())
    found = find_bad_variables(client.images.get(tag).attrs["Config"]["Env"] or [])
    files = 0
    for member, content in read_entries(tag):
        path = member.name.removeprefix("./")
        found += find_bad_modes([member])
        files += member.isfile()
        if member.isfile() and LEFTOVERS.fullmatch(path):
            found.append(f"{path}: of the build")
        if content is not None and any(secret in content for secret in secrets):
            found.append(f"{path}: names the index")
        # Debian's own bundle may be the one that this machine uses
        if content is not None and path != OWN_BUNDLE and hashlib.sha256(content).hexdigest() == bundle:
            found.append(f"{path}: the CA bundle of the machine")
    assert files, f"{tag}: no file was read"
    return found


def test_layers_hold_no_cache_log_secret_or_bad_mode(client: DockerClient, tree: tuple[Image, ...]) -> None:
    parents = {image.parent for image in tree}
    leaves = [image.tag for image in tree if image.name not in parents]  # the layers of a parent are in its children
    assert {tag: find_faults(client, tag) for tag in leaves} == {tag: [] for tag in leaves}


def test_a_secret_a_cache_and_a_log_are_found_where_they_are(
    client: DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://user:pass@127.0.0.1:1/wheels")
    contents = {
        "ca.pem": "the machine's authorities",
        "opt/kept.pem": "the machine's authorities",
        "etc/pip.ini": "index-url = http://user:pass@127.0.0.1:1/wheels",
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
    with imported(client, tmp_path / "root.tar") as tag:
        assert {entry.partition(":")[0] for entry in find_faults(client, tag)} == set(contents) - {"usr/bin/fine"}


@contextmanager
def imported(client: DockerClient, root: Path, *changes: str) -> Iterator[str]:
    """An image of one layer, made of a tar."""
    tag = f"nightjar/test-faults{os.getpid()}:latest"
    client.api.import_image_from_file(str(root), repository=tag, changes=list(changes))
    try:
        yield tag
    finally:
        client.images.remove(tag)


@pytest.mark.parametrize(
    ("path", "mode", "change", "fault"),
    [
        ("opt/fine", 0o755, "ENV FINE_1=x", None),
        ("usr/bin/su", 0o4755, "ENV FINE=x", None),
        ("opt/fine", 0o755, "ENV jax-version=1", "variable 'jax-version': a name is letters, digits and _"),
        ("opt/fine", 0o755, "ENV 1ST=1", "variable '1ST'"),
        ("opt/closed/", 0o770, "ENV A=x", "opt/closed (0770): others cannot enter or read it"),
        ("opt/open/", 0o777, "ENV A=x", "opt/open (0777): anybody may write in it"),
        ("srv/drop/", 0o1777, "ENV A=x", None),
        ("usr/bin/rooter", 0o4755, "ENV A=x", "usr/bin/rooter (4755): setuid or setgid"),
        ("opt/setgid", 0o2755, "ENV A=x", "opt/setgid (2755): setuid or setgid"),
        ("opt/writable", 0o666, "ENV A=x", "opt/writable (0666): anybody may write it"),
        ("opt/secret", 0o600, "ENV A=x", "opt/secret (0600): others cannot read it"),
    ],
)
def test_an_image_with_a_bad_name_or_mode_fails(
    client: DockerClient, tmp_path: Path, path: str, mode: int, change: str, fault: str | None
) -> None:
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("etc/anything"), io.BytesIO())
        member = tarfile.TarInfo(path.rstrip("/"))
        member.mode, member.type = mode, tarfile.DIRTYPE if path.endswith("/") else tarfile.REGTYPE
        archive.addfile(member, io.BytesIO())
    with imported(client, tmp_path / "root.tar", change) as tag:
        found = find_faults(client, tag)
    assert len(found) == (fault is not None), found
    assert all(str(fault) in one for one in found)


def test_the_image_is_an_oci_layout_that_other_engines_unpack(
    client: DockerClient, tree: tuple[Image, ...], tmp_path: Path
) -> None:
    missing = [program for program in ("skopeo", "umoci") if shutil.which(program) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}: nox -s system")
    if os.getuid() != 0:
        pytest.skip("files of other users are unpacked by root only")
    wanted = COPIES * client.images.get(tree[0].tag).attrs["Size"]
    if shutil.disk_usage(tmp_path).free < wanted + SPARED_BYTES:
        pytest.skip(f"three copies of {tree[0].tag} are {wanted / 1e9:.0f} GB, and the disk has no room for them")
    archive, layout = tmp_path / "image.tar", f"{tmp_path / 'layout'}:base"
    run_captured(["docker", "save", "--output", str(archive), tree[0].tag])
    run_captured(["skopeo", "copy", f"docker-archive:{archive}", f"oci:{layout}"])
    archive.unlink()
    run_captured(["umoci", "unpack", "--image", layout, str(tmp_path / "bundle")])
    config = json.loads((tmp_path / "bundle" / "config.json").read_text())
    assert config["process"]["user"]["uid"] == 10001
    assert (tmp_path / "bundle" / "rootfs" / "usr" / "bin" / "bash").stat().st_mode & 0o777 == 0o755
