"""What lies in the layers, also where a later layer hides it? No cache, no log, nothing of the building machine."""

import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import certifi
import pytest
from docker.client import DockerClient

from nightjar_ci.images.build import build_images, find_certificates, render_access
from nightjar_ci.images.publish.pack import read_members, save_images
from nightjar_ci.images.tree import Image
from nightjar_ci.tools import run_captured
from tests.ci.jax_nightly.wheels import serve
from tests.docker.conftest import Runner, copy_to_layout, rename_image
from tests.docker.faults import find_bad_modes, find_bad_variables
from tests.docker.package_index import fill

pytestmark = [pytest.mark.docker, pytest.mark.slow]

LEFTOVERS = re.compile(
    r"(run|tmp|var/tmp|root/\.cache|home/[^/]+/\.cache|var/cache|var/log|var/lib/apt/lists|source|locks|target|tools)/.+"
    r"|.*/(pip|uv)/cache/.*|etc/(uv|pip\.conf).*|.*-old|etc/(passwd|group|shadow|gshadow)-"
)
OWN_BUNDLE = "etc/ssl/certs/ca-certificates.crt"
PUBLIC = (b"https://pypi.org/", b"https://test.pypi.org/")  # no secret: pip and uv have them inside
CHUNK_BYTES = 2**20


def read_entries(tag: str) -> Iterator[tuple[tarfile.TarInfo | None, IO[bytes] | None]]:
    """Each entry of each layer of an image, with its bytes where it is a file; and its configuration, as no entry."""
    with save_images([tag]) as files:
        for file in files:
            if not file.is_layer:
                yield None, file.stream
                continue
            for tar, member in read_members(file.stream):
                yield member, tar.extractfile(member) if member.isfile() else None


def find_secrets(environ: Mapping[str, str]) -> list[bytes]:
    """What a build was told of this machine's index: the addresses, and the passwords in them."""
    addresses = re.findall(rb"https?://[^\s']+", render_access(environ, certificates=False).encode())
    # a shorter word stands in many files for other reasons
    passwords = [match[1] for address in addresses if (match := re.match(rb"https?://[^/@:]*:([^/@]{8,})@", address))]
    return [secret for secret in (*addresses, *passwords) if not secret.startswith(PUBLIC)]


def read_file(stream: IO[bytes], secrets: Sequence[bytes]) -> tuple[bool, str]:
    found, digest, tail = False, hashlib.sha256(), b""
    overlap = max(map(len, secrets), default=0)
    while chunk := stream.read(CHUNK_BYTES):
        digest.update(chunk)
        text = tail + chunk.replace(rb"\u0026", b"&")  # as the engine writes & in JSON
        found = found or any(secret in text for secret in secrets)
        tail = text[-overlap:] if overlap else b""
    return found, digest.hexdigest()


def find_faults(client: DockerClient, tag: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """What should not be in an image: leftovers and secrets in its layers and its configuration (variables, labels,
    history), bad modes, bad names of variables."""
    certificates = find_certificates(environ)
    bundle = None if certificates is None else hashlib.sha256(certificates.read_bytes()).hexdigest()
    secrets = find_secrets(environ)
    found = find_bad_variables(client.images.get(tag).attrs["Config"]["Env"] or [])
    files = documents = 0
    for member, stream in read_entries(tag):
        has_secret, digest = read_file(stream, secrets) if stream is not None else (False, None)
        if member is None:
            documents += 1
            found += ["configuration: names the index"] if has_secret else []
            continue
        path = member.name.removeprefix("./")
        found += find_bad_modes([member])
        files += member.isfile()
        if member.isfile() and LEFTOVERS.fullmatch(path):
            found.append(f"{path}: of the build")
        if has_secret:
            found.append(f"{path}: names the index")
        # Debian's own bundle may be the one that this machine uses
        if digest is not None and path != OWN_BUNDLE and digest == bundle:
            found.append(f"{path}: the CA bundle of the machine")
    assert files, f"{tag}: no file was read"
    assert documents, f"{tag}: no configuration was read"
    return found


def test_layers_hold_no_cache_log_secret_or_bad_mode(client: DockerClient, tree: tuple[Image, ...]) -> None:
    parents = {image.parent for image in tree}
    leaves = [image.tag for image in tree if image.name not in parents]  # the layers of a parent are in its children
    assert {tag: find_faults(client, tag) for tag in leaves} == {tag: [] for tag in leaves}


INDEX = "http://user:planted-word@127.0.0.1:1/wheels?a&b"


def test_a_secret_a_cache_and_a_log_are_found(
    client: DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", INDEX)
    contents = {
        "ca.pem": "the machine's authorities",
        "opt/kept.pem": "the machine's authorities",
        "etc/pip.ini": f"index-url = {INDEX}",
        "root/.cache/uv/x": "",
        "var/log/apt.log": "",
        "usr/bin/fine": "x" * (3 * CHUNK_BYTES) + "https://127.0.0.1:1/other",
        "usr/lib/large": "x" * (CHUNK_BYTES - 9) + INDEX,
        "usr/lib/password": "login user password planted-word",
    }
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        for path, text in contents.items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            archive.add(file, path)
    with imported(client, tmp_path / "root.tar") as tag:
        assert {entry.partition(":")[0] for entry in find_faults(client, tag)} == set(contents) - {"usr/bin/fine"}


@pytest.mark.parametrize("change", [f'LABEL index="{INDEX}"', f'ENV INDEX="{INDEX}"', 'CMD ["planted-word"]'])
def test_a_secret_in_the_configuration_of_an_image_is_found(client: DockerClient, tmp_path: Path, change: str) -> None:
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("etc/anything"), io.BytesIO())
    with imported(client, tmp_path / "root.tar", change) as tag:
        assert set(find_faults(client, tag, {"UV_DEFAULT_INDEX": INDEX})) == {"configuration: names the index"}
        assert find_faults(client, tag, {}) == []
    assert find_secrets({"UV_DEFAULT_INDEX": f"{PUBLIC[0].decode()}packages"}) == []


def test_an_image_that_was_built_with_secrets_holds_none_of_them(
    client: DockerClient, checkout: Path, tree: tuple[Image, ...], bridge: str, tmp_path: Path
) -> None:
    (digest,) = fill(tmp_path / "index", "flax==1.0").values()
    (checkout / "docker/locks/jax-cpu.txt").write_text(f"flax==1.0 \\\n    --hash=sha256:{digest}\n")
    (tmp_path / "ca.pem").write_bytes(Path(certifi.where()).read_bytes() + b"# planted\n")
    image = rename_image(tree, "jax", "cpu")
    with serve(tmp_path / "index", bridge) as address:
        planted = address.replace("://", f"://planted-user:planted-word-{os.getpid()}@")
        environ = {"UV_DEFAULT_INDEX": planted, "SSL_CERT_FILE": str(tmp_path / "ca.pem")}
        build_images(checkout, [image], flavor="cpu", environ=environ, on_step=lambda step: None)
    assert len(find_secrets(environ)) > 1
    assert "flax-1.0.dist-info" in Runner(client, image)("sh", "-c", "ls /opt/nightjar/lib/*/site-packages")
    assert find_faults(client, image.tag, environ) == []


@contextmanager
def imported(client: DockerClient, root: Path, *changes: str) -> Iterator[str]:
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
        ("opt/fine", 0o755, "ENV jax-version=1", "variable 'jax-version': expected letters, digits and _"),
        ("opt/closed/", 0o770, "ENV A=x", "opt/closed (0770): others cannot enter or list it"),
        ("usr/bin/rooter", 0o4755, "ENV A=x", "usr/bin/rooter (4755): setuid or setgid"),
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


@pytest.mark.root  # files of other users are unpacked
@pytest.mark.skopeo
@pytest.mark.umoci
def test_other_engines_unpack_its_oci_layout(client: DockerClient, tree: tuple[Image, ...], tmp_path: Path) -> None:
    layout = copy_to_layout(client, tree[0], tmp_path)
    run_captured(["umoci", "unpack", "--image", layout, str(tmp_path / "bundle")])
    config = json.loads((tmp_path / "bundle" / "config.json").read_text())
    assert config["process"]["user"]["uid"] == 10001
    assert (tmp_path / "bundle" / "rootfs" / "usr" / "bin" / "bash").stat().st_mode & 0o777 == 0o755
