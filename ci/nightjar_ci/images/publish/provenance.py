"""The provenance of an image: an in-toto statement with a SLSA predicate. Pure.

In: the built image, its commit, locks and base. Out: the statement about the image's manifest digest. It is unsigned,
hence a claim and not a proof, until `sign.py` signs it with a key.

Source: in-toto.io/Statement/v1; slsa.dev/spec/v1.0/provenance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:nightjar:images:bake:1"


def render_provenance(
    *,
    subject: str,
    digest: str,
    target: str,
    platform: str,
    labels: Mapping[str, str],
    locks: Mapping[str, str],
    builder: str,
    invocation: str | None,
) -> dict[str, Any]:
    """The provenance of an image of one platform.

    Args:
        subject: the repository and tag that it is pushed to.
        digest: of its manifest.
        target: its tag in the engine.
        platform: such as `linux/amd64`.
        labels: of the image; the standard ones give its revision and base.
        locks: path of each lock file to its SHA-256.
        builder: URL of the workflow, or a URN for another machine.
        invocation: id of the workflow's run, if any.
    """
    revision = labels.get("org.opencontainers.image.revision", "")
    commit, _, dirty = revision.partition("-")
    dependencies: list[dict[str, Any]] = [
        {"uri": path, "digest": {"sha256": sha256}} for path, sha256 in sorted(locks.items())
    ]
    if commit:
        source = labels.get("org.opencontainers.image.source") or "urn:nightjar:source"
        dependencies.insert(0, {"uri": f"git+{source}" if "://" in source else source, "digest": {"gitCommit": commit}})
    if base := labels.get("org.opencontainers.image.base.name"):
        dependency: dict[str, Any] = {"uri": f"pkg:docker/{base}"}
        algorithm, _, value = labels.get("org.opencontainers.image.base.digest", "").partition(":")
        if value:
            dependency["digest"] = {algorithm: value}
        elif layers := labels.get("nightjar.base.layers", "").split():  # the base was never in a registry
            dependency["annotations"] = {"layers": layers}
        dependencies.append(dependency)
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": subject, "digest": {"sha256": digest.removeprefix("sha256:")}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"target": target, "platform": platform, "workingTreeChanged": bool(dirty)},
                "internalParameters": {"labels": dict(sorted(labels.items()))},
                "resolvedDependencies": dependencies,
            },
            "runDetails": {
                "builder": {"id": builder},
                "metadata": {"invocationId": invocation} if invocation else {},
            },
        },
    }
