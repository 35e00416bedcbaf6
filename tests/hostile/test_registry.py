"""Registries and indexes that answer with lies: each command ends soon, with what is wrong, and never with 0."""

import json
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from nightjar_ci.errors import NightjarError
from nightjar_ci.web import http as web
from nightjar_ci.web.package_index import read_files, read_releases
from nightjar_ci.web.registry import MANIFEST_TYPE, Repository, digest_of
from tests.ci.servers import Answer, listen, serve
from tests.hostile.world import World, check_manners

JSON = {"Content-Type": "application/json"}


@pytest.fixture(autouse=True)
def _without_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightjar_ci.web.registry._WAIT_S", 0.0)


DIGEST = "sha256:" + "0" * 64


def manifest(**changes: object) -> Answer:
    layer = {"mediaType": "x", "digest": DIGEST, "size": 1}
    document = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": layer, "layers": [layer], **changes}
    body = json.dumps(document).encode()
    return 200, {"Content-Type": MANIFEST_TYPE, "Docker-Content-Digest": digest_of(body)}, body


def text(body: bytes, **headers: str) -> Answer:
    return 200, {**JSON, **headers}, body


ANSWERS: dict[str, Callable[[], Answer]] = {
    "nothing": lambda: text(b""),
    "html": lambda: text(b"<html>log in at the hotel's page</html>"),
    "not utf-8": lambda: text(b'{"tags": ["\xff\xfe"]}'),
    "a list": lambda: text(b"[]"),
    "a number": lambda: text(b"1"),
    "null": lambda: text(b"null"),
    "half": lambda: text(b'{"tags": ["a"'),
    "too deep": lambda: text(b"[" * 1_000_000),
    "too deep an object": lambda: text(b'{"tags":' * 100_000),
    "tags that are numbers": lambda: text(b'{"tags": [1, 2], "layers": 3}'),
    "tags that are an object": lambda: text(b'{"tags": {"a": 1}, "layers": {}}'),
    "a tag that is a path": lambda: text(b'{"tags": ["../../x"], "annotations": {"x": 1}}'),
    "a tag that acts": lambda: text(b'{"tags": ["\\u001b[2J"], "mediaType": []}'),
    "no tags": lambda: text(b'{"tags": 0, "config": []}'),
    "layers of nothing": lambda: manifest(layers=[None], tags=1),
    "a layer without digest": lambda: manifest(layers=[{"size": 1}], tags=1),
    "a layer with a path": lambda: manifest(layers=[{"digest": "../../etc/passwd", "size": 1}], tags=1),
    "a negative size": lambda: manifest(layers=[{"digest": DIGEST, "size": -1}], tags=1),
    "a size of text": lambda: manifest(layers=[{"digest": DIGEST, "size": "1"}], tags=1),
    "annotations of numbers": lambda: manifest(annotations={"a": 1}, tags=1),
    "a platform of text": lambda: manifest(manifests=[{"digest": DIGEST, "size": 1, "platform": "linux"}], tags=1),
    "a server's fault": lambda: (500, JSON, b'{"errors": "x"}'),
    "errors of nothing": lambda: (404, JSON, b'{"errors": [null]}'),
    "too many requests": lambda: (429, JSON, b'{"errors": [{"code": 7}]}'),
    "a realm elsewhere": lambda: (401, {"WWW-Authenticate": 'Bearer realm="file:///etc/passwd"'}, b""),
    "a redirect to a file": lambda: (302, {"Location": "file:///etc/passwd"}, b""),
    "a redirect for ever": lambda: (302, {"Location": "/v2/"}, b""),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_registry_that_lies_is_refused(name: str) -> None:
    with serve(lambda *_: ANSWERS[name]()) as served:
        repository = Repository(f"{served.url.removeprefix('http://')}/team/nightjar")
        for read in (repository.tags, lambda: repository.read_manifest("latest"), lambda: repository.read_blob(DIGEST)):
            with pytest.raises(NightjarError, match="nightjar"):
                read()


@pytest.mark.parametrize("name", ["html", "a list", "half", "too deep", "a server's fault", "a redirect to a file"])
def test_a_package_index_that_lies_is_refused(name: str) -> None:
    with serve(lambda *_: ANSWERS[name]()) as served, pytest.raises(NightjarError):
        read_releases("jax", served.url)


@pytest.mark.parametrize("name", [{"filename": 1}, {"filename": None}, {"x": 1}, 3, None, {"filename": ["a"]}])
def test_a_package_index_with_strange_files_is_refused(name: object) -> None:
    page = text(json.dumps({"files": [name]}).encode(), **{"Content-Type": "application/vnd.pypi.simple.v1+json"})
    with serve(lambda *_: page) as served, pytest.raises(NightjarError):
        read_releases("jax", served.url)


def drip(head: bytes) -> Callable[[socket.socket], None]:
    """Says a beginning, then a byte at a time, each within the limit of silence, for a minute."""

    def talk(connection: socket.socket) -> None:
        connection.sendall(head)
        for _ in range(600):
            connection.sendall(b"a")
            time.sleep(0.1)

    return talk


def flood(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"\r\n")
    while True:
        connection.sendall(b"x" * 65536)


HEAD = b"HTTP/1.1 200 OK\r\n"
TALKS: dict[str, Callable[[socket.socket], None]] = {
    "closes at once": lambda _: None,
    "is no web server": lambda connection: connection.sendall(b"220 smtp\r\n"),
    "sends half of the headers": lambda connection: connection.sendall(HEAD + b"Content-Le"),
    "sends less than it says": lambda connection: connection.sendall(HEAD + b"Content-Length: 100\r\n\r\nx"),
    "says that more follows": lambda connection: connection.sendall(
        HEAD + b'Content-Length: 99\r\n\r\n{"tags": ["a"]}'
    ),
    "sends a wrong chunk": lambda connection: connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
    "sends a long header": lambda connection: connection.sendall(HEAD + b"X: " + b"x" * 100_000 + b"\r\n\r\n"),
    "sends many headers": lambda connection: connection.sendall(HEAD + b"X: x\r\n" * 1000 + b"\r\n"),
    "sends a byte at a time": drip(HEAD + b"Content-Length: 1000\r\n\r\n"),
    "sends headers a byte at a time": drip(HEAD),
    "says nothing": lambda _: time.sleep(60),
    "sends for ever": flood,
}


@pytest.mark.parametrize("name", TALKS)
def test_a_connection_that_lies_ends_soon(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "DEADLINE_S", 1.5)
    monkeypatch.setattr(web, "TIMEOUT_S", 1.0)
    monkeypatch.setattr(web, "MAX_BYTES", 2**20)
    start = time.monotonic()

    def talk(connection: socket.socket) -> None:
        connection.recv(65536)
        with suppress(OSError):  # the client has left, as it should
            TALKS[name](connection)

    with listen(talk) as host, pytest.raises(NightjarError, match=r"cannot reach|did not send"):
        Repository(f"{host}/team/nightjar").tags()
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("name", ["html", "too deep", "a layer with a path", "a server's fault"])
def test_the_commands_say_what_is_wrong(name: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.make()
    with serve(lambda *_: ANSWERS[name]()) as served:
        repository = f"{served.url.removeprefix('http://')}/team/nightjar"
        done = world.run_each(
            ["images", "list", f"{repository}:jax-cpu-2026-11-21"],
            ["images", "list", repository],
            ["images", "pull", f"{repository}:jax-cpu", "--dry-run"],
        )
    for end in done:
        check_manners(end)
        assert end.code in (2, 3), end
        assert "no such option" not in end.stderr.lower(), end
    assert world.find_leaks(done) == []


@pytest.mark.parametrize("name", ["../jax-1.0-py3-none-any.whl", "jax-1.0-py3-none-any/../../x.whl", "a\\b.whl"])
def test_a_file_of_an_index_has_a_name_and_no_path(name: str) -> None:
    page = json.dumps({"files": [{"filename": name, "url": "x"}, {"filename": "jax-1.0-py3-none-any.whl"}]}).encode()
    with serve(lambda *_: (200, {"Content-Type": "application/vnd.pypi.simple.v1+json"}, page)) as served:
        assert [file.name for file in read_files("jax", served.url)] == ["jax-1.0-py3-none-any.whl"]


def test_the_server_of_these_tests_can_tell_the_truth() -> None:
    """Without this, a client that refuses everything would pass."""
    with serve(lambda *_: text(b'{"tags": ["a", "b-1"]}')) as served:
        assert Repository(f"{served.url.removeprefix('http://')}/team/nightjar").tags() == ["a", "b-1"]
    body = manifest()
    with serve(lambda *_: body) as served:
        repository = Repository(f"{served.url.removeprefix('http://')}/team/nightjar")
        assert repository.read_manifest("latest")[1] == body[2]
