"""The provenance of an image: its commit first, then its locks, then its base, as far as they are known."""

from typing import Any

import pytest

from nightjar_ci.images.publish.push import render_provenance

LABELS = {
    "org.opencontainers.image.revision": "abc123",
    "org.opencontainers.image.source": "https://example.com/nightjar",
    "org.opencontainers.image.base.name": "debian:13",
    "org.opencontainers.image.base.digest": "sha256:" + "1" * 64,
}


def render(labels: dict[str, str], invocation: str | None = "run/7") -> dict[str, Any]:
    return render_provenance(
        subject="example.com/jax:cpu",
        digest="sha256:" + "2" * 64,
        target="nightjar/jax:cpu",
        platform="linux/amd64",
        labels=labels,
        locks={"b.txt": "b" * 64, "a.txt": "a" * 64},
        builder="https://example.com/workflow",
        invocation=invocation,
    )


def list_dependencies(labels: dict[str, str]) -> list[dict[str, Any]]:
    dependencies: list[dict[str, Any]] = render(labels)["predicate"]["buildDefinition"]["resolvedDependencies"]
    return dependencies


LOCKS = [{"uri": "a.txt", "digest": {"sha256": "a" * 64}}, {"uri": "b.txt", "digest": {"sha256": "b" * 64}}]


def test_commit_locks_and_base_are_named_in_this_order() -> None:
    assert list_dependencies(LABELS) == [
        {"uri": "git+https://example.com/nightjar", "digest": {"gitCommit": "abc123"}},
        *LOCKS,
        {"uri": "pkg:docker/debian:13", "digest": {"sha256": "1" * 64}},
    ]


def test_the_statement_is_about_the_manifest_and_names_who_built_it() -> None:
    statement = render(LABELS)
    assert statement["subject"] == [{"name": "example.com/jax:cpu", "digest": {"sha256": "2" * 64}}]
    assert statement["predicate"]["runDetails"] == {
        "builder": {"id": "https://example.com/workflow"},
        "metadata": {"invocationId": "run/7"},
    }
    assert render(LABELS, None)["predicate"]["runDetails"]["metadata"] == {}
    assert statement["predicate"]["buildDefinition"]["internalParameters"] == {"labels": LABELS}


@pytest.mark.parametrize(("revision", "changed"), [("abc123", False), ("abc123-dirty", True), ("", False)])
def test_a_changed_tree_is_said_to_be_one(revision: str, changed: bool) -> None:
    labels = LABELS | {"org.opencontainers.image.revision": revision}
    parameters = render(labels)["predicate"]["buildDefinition"]["externalParameters"]
    assert parameters == {"target": "nightjar/jax:cpu", "platform": "linux/amd64", "workingTreeChanged": changed}


def test_what_is_not_known_is_not_named() -> None:
    assert list_dependencies({}) == LOCKS
    sourceless = {"org.opencontainers.image.revision": "abc123"}
    assert list_dependencies(sourceless)[0] == {"uri": "urn:nightjar:source", "digest": {"gitCommit": "abc123"}}


def test_a_base_that_was_never_in_a_registry_is_its_layers() -> None:
    labels = {"org.opencontainers.image.base.name": "local", "nightjar.base.layers": "sha256:1 sha256:2"}
    base = {"uri": "pkg:docker/local", "annotations": {"layers": ["sha256:1", "sha256:2"]}}
    assert list_dependencies(labels) == [*LOCKS, base]
    assert list_dependencies({"org.opencontainers.image.base.name": "local"})[-1] == {"uri": "pkg:docker/local"}
