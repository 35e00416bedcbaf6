"""Registries as hosted ones are: they redirect, limit, fail for a moment, and refuse what the specification refuses."""

import json
from pathlib import Path

import pytest

from nightjar_ci.images.publish.artifacts import list_artifacts
from nightjar_ci.web.registry import MANIFEST_TYPE, RegistryError, Repository
from tests.ci.servers import Answer, Served, serve

DIGEST = "sha256:" + "0" * 64
TAG = DIGEST.replace(":", "-")


@pytest.fixture(autouse=True)
def _without_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightjar_ci.web.registry._WAIT_S", 0.0)


def open_at(served: Served) -> Repository:
    return Repository(f"{served.url.removeprefix('http://')}/me/x")


@pytest.mark.parametrize("name", ["docker.io/me/x", "index.docker.io/Me/x", "me/x"])
def test_docker_hub_has_several_names(name: str) -> None:
    repository = Repository(name)
    assert (repository.host, repository.path) == ("registry-1.docker.io", "me/x")


def test_whether_a_blob_is_there_is_asked_without_its_content_though_it_is_elsewhere() -> None:
    def answer(method: str, path: str, authorization: str | None) -> Answer:
        return (200, {}, b"x" * 9) if path == "/cdn" else (307, {"Location": "/cdn"}, b"")

    with serve(answer) as served:
        assert open_at(served).has_blob(DIGEST)
        assert [method for method, _ in served.asked] == ["HEAD", "HEAD"]


def test_a_blob_is_sent_with_its_length(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"layer")

    def answer(method: str, path: str, authorization: str | None) -> Answer:
        return {"HEAD": (404, {}, b""), "POST": (202, {"Location": "/upload"}, b""), "PUT": (201, {}, b"")}[method]

    with serve(answer) as served:
        assert open_at(served).put_blob(DIGEST, tmp_path / "blob")
        assert served.bodies[-1] == b"layer"  # of as many bytes as the header says


@pytest.mark.parametrize("status", [429, 502])
def test_a_fault_that_passes_does_not_end_a_push(status: int) -> None:
    faults: list[Answer] = [(status, {}, b"")] * 2

    def answer(method: str, path: str, authorization: str | None) -> Answer:
        return faults.pop() if faults else (201, {}, b"")

    with serve(answer) as served:
        open_at(served).put_manifest("x", b"{}", MANIFEST_TYPE)
        assert len(served.asked) == 3
        faults += [(status, {}, b"")] * 3
        with pytest.raises(RegistryError, match=str(status)):
            open_at(served).put_manifest("x", b"{}", MANIFEST_TYPE)


@pytest.mark.parametrize("listed", [True, False])
def test_documents_are_found_by_their_tag_where_the_referrers_are_refused(listed: bool) -> None:
    """ghcr.io has no referrers, and answers many questions for them with 429."""
    index = json.dumps({"schemaVersion": 2, "manifests": [{"digest": DIGEST, "size": 1}]}).encode()

    def answer(method: str, path: str, authorization: str | None) -> Answer:
        if "/referrers/" in path:
            return 429, {}, b""
        return (200, {}, index) if listed and path.endswith(TAG) else (404, {}, b"")

    with serve(answer) as served:
        if listed:
            assert [one["digest"] for one in list_artifacts(open_at(served), DIGEST)] == [DIGEST]
            return
        with pytest.raises(RegistryError, match="429"):
            list_artifacts(open_at(served), DIGEST)
