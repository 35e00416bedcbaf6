"""`images push` with a real engine and a real registry: pushed, published, listed, pulled, read by other tools."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any

import pytest
from docker.client import DockerClient
from docker.errors import ImageNotFound

from nightjar_ci.cli import main
from nightjar_ci.images.build import inspect_image
from nightjar_ci.images.publish.push import push_images
from nightjar_ci.images.tree import find_checkout
from nightjar_ci.web.registry import Repository
from tests.called import call
from tests.ci.registries import SOURCE, Registry, make_tar
from tests.ci.servers import listen
from tests.machine import find_program
from tests.stand_ins import put_on_path

pytestmark = pytest.mark.docker

CHECKOUT = find_checkout(Path(__file__).parent)
TAG = f"nightjar-test/tiny{os.getpid()}:cpu"  # of this process alone: the engine is everybody's
NAME = f"tiny{os.getpid()}-cpu"
DAY = "2026-11-21"


@pytest.fixture(scope="module")
def client() -> Iterator[DockerClient]:
    client = DockerClient.from_env()
    yield client
    client.close()


def metadata(name: str, version: str) -> dict[str, str]:
    path = f"opt/nightjar/lib/python3.13/site-packages/{name}-{version}.dist-info/METADATA"
    return {path: f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nVersion: not this\n"}


@pytest.fixture
def image(client: DockerClient) -> Iterator[str]:
    status = "Package: bash\nStatus: install ok installed\nVersion: 5.2-1\n"
    data = make_tar({**metadata("Jax_Cuda", "0.12.0"), "var/lib/dpkg/status": status})
    client.api.import_image_from_data(data, repository=TAG, changes=["USER 10001", 'LABEL "a"="b"'])
    first = client.images.get(TAG).id
    yield TAG
    last = client.images.get(TAG).history()  # a test may have given the tag to another image, or put layers on this one
    for one in dict.fromkeys([*(layer["Id"] for layer in last if layer["Id"] != "<missing>"), first]):
        with suppress(ImageNotFound):
            client.images.remove(one, force=True, noprune=True)


def report_on(path: Path, *failures: str, tags: tuple[str, ...] = (TAG,)) -> Path:
    found = inspect_image(TAG)
    assert found is not None
    tested = {"id": found["Id"], "passed": 2, "skipped": 0, "failures": list(failures)}
    path.write_text(json.dumps({"images": [{"tag": tag, **tested} for tag in tags]}))
    return path


DOCKER = """#!/bin/sh
case "$*" in *--print*) cat "$0.json" ;; *) exec "$REAL_DOCKER" "$@" ;; esac
"""


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`nightjar-ci images` in a checkout whose tree is the tiny image alone."""
    texts = {"base.name": "scratch", "description": "x", "title": "nightjar/tiny"}
    labels = {f"org.opencontainers.image.{key}": text for key, text in texts.items()}
    (tmp_path / "docker.json").write_text(json.dumps({"target": {"tiny": {"tags": [TAG], "labels": labels}}}))
    monkeypatch.setenv("REAL_DOCKER", find_program("docker"))
    put_on_path(monkeypatch, tmp_path, {"docker": DOCKER})
    monkeypatch.setenv("NIGHTJAR_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(CHECKOUT)
    return partial(call, main, "images")


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_an_image_is_pushed_published_listed_and_pulled(
    client: DockerClient, registry: Registry, image: str, images: Command, tmp_path: Path, compression: str
) -> None:
    to = f"{registry.host}/journey-{compression}"
    push = ["push", "tiny", "--to", to, "--date", DAY, "--compression", compression]
    refused = images(*push)
    assert refused.returncode == 0, refused.stderr
    assert f"{NAME}-{DAY} is not published: linux/amd64 has no test report." in refused.stdout
    assert "does not exist yet" in refused.stdout
    failed = images(*push, "--tests", str(report_on(tmp_path / "bad.json", "test_a")))
    assert failed.returncode == 1
    assert "linux/amd64 failed test_a" in failed.stdout
    done = images(*push, "--tests", str(report_on(tmp_path / "tests.json")), "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["sent_bytes"] == 0  # the registry has it since the first push
    assert answer["nights"][0]["rolling_date"] == DAY
    (listed,) = json.loads(images("list", to, "--json").stdout)["images"]
    assert (listed["packages"], listed["system_packages"]) == ({"jax-cuda": "0.12.0"}, {"bash": "5.2-1"})
    assert "jax-cuda==0.12.0" in images("list", f"{to}:{NAME}").stdout
    pulled = images("pull", f"{to}:{NAME}")
    assert pulled.returncode == 0, pulled.stderr
    try:
        assert pulled.stdout == f"{to}:{NAME}-{DAY}\n"
        assert client.images.get(pulled.stdout.strip()).attrs["RootFS"] == client.images.get(TAG).attrs["RootFS"]
    finally:
        client.images.remove(pulled.stdout.strip())


def test_of_all_images_one_that_was_not_built_keeps_its_night_and_the_others_are_published(
    client: DockerClient, registry: Registry, image: str, images: Command, tmp_path: Path
) -> None:
    leaf, name = TAG.replace("tiny", "leaf"), NAME.replace("tiny", "leaf")
    tree = json.loads((tmp_path / "docker.json").read_text())
    labels = {**tree["target"]["tiny"]["labels"], "org.opencontainers.image.title": "nightjar/leaf"}
    tree["target"]["leaf"] = {"tags": [leaf], "labels": labels}
    (tmp_path / "docker.json").write_text(json.dumps({**tree, "group": {"default": {"targets": ["tiny"]}}}))
    push = ["push", "--all", "--to", f"{registry.host}/leaves", "--tests"]
    client.images.get(TAG).tag(leaf)
    try:
        both = images(*push, str(report_on(tmp_path / "both.json", tags=(TAG, leaf))), "--date", DAY)
    finally:
        client.images.remove(leaf)
    assert both.returncode == 0, both.stderr
    one = images(*push, str(report_on(tmp_path / "one.json")), "--date", "2026-11-22")
    assert one.returncode == 1, one.stderr
    assert f"{NAME}-2026-11-22 is published" in one.stdout
    assert (
        f"{name}-2026-11-22 is not published: linux/amd64 has not been pushed. The rolling tag {name} stays at {DAY}."
        in one.stdout
    )


def test_another_image_of_a_published_date_is_refused_with_2(
    client: DockerClient, registry: Registry, image: str, images: Command, tmp_path: Path
) -> None:
    push = ["push", "tiny", "--to", f"{registry.host}/refused", "--date", DAY]
    assert images(*push, "--tests", str(report_on(tmp_path / "t.json"))).returncode == 0
    client.api.import_image_from_data(make_tar(metadata("jax", "9")), repository=TAG)
    again = images(*push, "--tests", str(report_on(tmp_path / "u.json")))
    assert again.returncode == 2
    assert "cannot replace it" in again.stderr
    stale = images(*push, "--tests", str(tmp_path / "t.json"))
    assert stale.returncode == 2
    assert "test this build" in stale.stderr


def test_a_second_push_of_one_image_sends_no_byte(registry: Registry, image: str, tmp_path: Path) -> None:
    def push(cache: str, repository: str) -> Any:
        registry.repository.name = f"{registry.host}/{repository}"
        return push_images(
            [image],
            registry.repository,
            DAY,
            tested={},
            source=SOURCE,
            layer_cache=tmp_path / cache,
            on_step=steps.append,
        )

    steps: list[str] = []
    first = push("a", "same")
    elsewhere = push("b", "same-elsewhere")
    assert first.images[0].digest == elsewhere.images[0].digest
    steps.clear()
    again = push("a", "same")
    assert not [step for step in steps if "packing" in step]
    assert (first.sent_bytes > 0, again.images) == (True, first.images)


def test_a_layer_has_one_digest_in_whichever_order_the_engine_wrote_it(
    registry: Registry, client: DockerClient, image: str, tmp_path: Path
) -> None:
    walked = ["opt", "opt/api", "opt/api/common.h", "opt/api.h"]
    pushed = []
    for number, names in enumerate((walked, sorted(walked))):
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            for name in names:
                member = tarfile.TarInfo(name)
                member.type, member.mode = (tarfile.REGTYPE, 0o644) if name.endswith(".h") else (tarfile.DIRTYPE, 0o755)
                member.size = len(name) if member.isfile() else 0
                tar.addfile(member, io.BytesIO(name.encode()))
        before = client.images.get(TAG).id
        client.api.import_image_from_data(layer.getvalue(), repository=TAG)
        if number:  # the first one is the fixture's
            with suppress(ImageNotFound):  # containerd's store has removed it
                client.images.remove(before, force=True, noprune=True)
        repository = Repository(f"{registry.host}/ordered{number}")
        found = push_images(
            [TAG], repository, DAY, tested={}, source=SOURCE, layer_cache=tmp_path / str(number), on_step=lambda _: None
        )
        manifest, _ = repository.read_manifest(found.images[0].digest)
        config = json.loads(repository.read_blob(manifest["config"]["digest"]))
        pushed.append((manifest["layers"], config["rootfs"]["diff_ids"]))
        engine = inspect_image(TAG)
        assert engine is not None
        assert (engine["RootFS"]["Layers"] == config["rootfs"]["diff_ids"]) == (names == walked)  # type: ignore[index]
    assert pushed[0] == pushed[1]


def add_layers(client: DockerClient, contents: list[bytes]) -> None:
    copies = [f"COPY {number} /{number}\n" for number in range(len(contents))]
    files = {str(number): content for number, content in enumerate(contents)}
    context = make_tar({"Dockerfile": "".join([f"FROM {TAG}\n", *copies]), **files})
    client.images.build(fileobj=io.BytesIO(context), custom_context=True, tag=TAG)


@contextmanager
def run_relay(host: str, limit_bytes: int, on_limit: Callable[[], None]) -> Iterator[str]:
    """Hands connections on to a registry until so many bytes have been sent to it; from then on, nothing."""
    port = int(host.rpartition(":")[2])
    sent = 0

    def relay(connection: socket.socket) -> None:
        nonlocal sent
        with socket.create_connection(("127.0.0.1", port)) as onward:
            Thread(target=copy_stream, args=(onward, connection), daemon=True).start()
            while sent < limit_bytes and (data := connection.recv(65536)):
                onward.sendall(data)
                sent += len(data)
            if sent >= limit_bytes:
                on_limit()

    with listen(relay) as relayed:
        yield relayed


def copy_stream(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)


def test_a_push_that_is_killed_within_a_layer_leaves_no_half_tag_and_the_next_sends_the_rest(
    client: DockerClient, registry: Registry, image: str, images: Command, tmp_path: Path
) -> None:
    random = Random(os.getpid())
    add_layers(client, [random.randbytes(4_000_000), random.randbytes(4_000_000)])  # they do not compress
    to = f"{registry.host}/killed"
    tests = ["--date", DAY, "--tests", str(report_on(tmp_path / "t.json"))]
    code = "import sys; from nightjar_ci.cli import main; main(sys.argv[1:])"
    killed = Event()
    with run_relay(registry.host, 6_000_000, killed.set) as relay:  # in the middle of the second, whichever that is
        argv = [sys.executable, "-c", code, "images", "push", "tiny", "--to", f"{relay}/killed", *tests]
        with subprocess.Popen(argv, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            assert killed.wait(timeout=60)
            process.kill()
    assert process.returncode == -signal.SIGKILL
    assert json.loads(images("list", to, "--json").stdout)["images"] == []
    repository = Repository(to)
    assert [repository.find_digest(tag) for tag in (NAME, f"{NAME}-{DAY}", f"{NAME}-{DAY}-linux-amd64")] == [None] * 3
    done = images("push", "tiny", "--to", to, *tests, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert 4_000_000 < answer["sent_bytes"] < 4_100_000  # of the two large layers only that which had not come whole
    assert answer["nights"][0]["rolling_date"] == DAY
    elsewhere = images("push", "tiny", "--to", f"{registry.host}/unkilled", *tests, "--json")
    assert json.loads(elsewhere.stdout)["images"][0]["digest"] == answer["images"][0]["digest"]


@pytest.mark.skopeo
@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_other_tools_read_it(registry: Registry, image: str, images: Command, tmp_path: Path, compression: str) -> None:
    push = ["push", "tiny", "--to", f"{registry.host}/{compression}", "--date", DAY, "--compression", compression]
    assert images(*push, "--tests", str(report_on(tmp_path / "t.json"))).returncode == 0
    source = f"docker://{registry.host}/{compression}:{NAME}"
    copy = ["skopeo", "copy", "--src-tls-verify=false", source, f"oci:{tmp_path / 'layout'}:{NAME}"]
    copied = subprocess.run(copy, capture_output=True, text=True, check=False)
    assert copied.returncode == 0, copied.stderr
    manifests = json.loads((tmp_path / "layout" / "index.json").read_text())["manifests"]
    assert [one["mediaType"] for one in manifests] == ["application/vnd.oci.image.manifest.v1+json"]
    blobs = tmp_path / "layout" / "blobs" / "sha256"
    layers = json.loads((blobs / manifests[0]["digest"].removeprefix("sha256:")).read_text())["layers"]
    assert {one["mediaType"].rpartition("+")[2] for one in layers} == {compression}


@pytest.mark.parametrize(
    ("arguments", "code", "message", "hint"),
    [
        (["push", "tiny", "--to", "127.0.0.1:1/x"], 3, "cannot reach", "host and port"),
        (["push", "tiny"], 2, "no repository is named", "--to ghcr.io"),
        (["push", "tiny", "--to", "x.io/y:tag"], 2, "'x.io/y:tag' is not a valid repository: it has a tag", "ghcr.io"),
        (["push", "tiny", "--to", "https://x.io/y"], 2, "is not a valid repository: it is not HOST/PATH", "ghcr.io"),
        (["push", "tiny", "--to", "x/y", "--date", "tonight"], 2, "'tonight' is not a valid date", "UTC"),
        (["push", "tiny", "--to", "x/y", "--platform", "arm64"], 2, "'arm64' is not a valid platform", "linux/arm64"),
        (["push", "tinny", "--to", "x/y"], 2, "unknown image 'tinny'", "did you mean 'tiny'?"),
        (["push", "tiny", "--to", "x/y", "--tests", "/nowhere.json"], 2, "/nowhere.json: no such file", ""),
        (["verify", "127.0.0.1:1/x"], 2, "has no image name", "REPOSITORY:NAME"),
        (["list", "127.0.0.1:1/x"], 3, "cannot reach", "host and port"),
    ],
)
def test_what_cannot_be_pushed_ends_with_the_next_step(
    image: str, images: Command, arguments: list[str], code: int, message: str, hint: str
) -> None:
    done = images(*arguments)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert hint in done.stderr


def test_an_image_that_is_not_built_is_named(images: Command, client: DockerClient) -> None:
    done = images("push", "tiny", "--to", "127.0.0.1:1/x")
    assert done.returncode == 2
    assert f"{TAG}: the engine has no such image. Hint: nightjar-ci images build" in done.stderr.replace("\n", " ")
