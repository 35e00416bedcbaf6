"""Where does an image come from? An in-toto statement with SLSA provenance. Pure.

In: what was built, from which commit, locks and base. Out: the statement, about the image's manifest by digest. It is
not signed here: whoever has a key does that (`sign.py`), and without that it is a claim, not a proof.

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
        target: what was built: tag in the engine.
        platform: such as `linux/amd64`.
        labels: of the image; its revision and base are named in the standard ones.
        locks: lock files, by path, to their SHA-256.
        builder: who built it: the address of a workflow run, or of nobody.
        invocation: id of that run; None where there is none.
    """
    revision = labels.get("org.opencontainers.image.revision", "")
    commit, _, dirty = revision.partition("-")
    dependencies: list[dict[str, Any]] = [
        {"uri": path, "digest": {"sha256": sha256}} for path, sha256 in sorted(locks.items())
    ]
    if commit:
        source = labels.get("org.opencontainers.image.source") or "urn:nightjar:source"
        dependencies.insert(0, {"uri": f"git+{source}" if "://" in source else source, "digest": {"gitCommit": commit}})
    base, base_digest = (labels.get(f"org.opencontainers.image.base.{key}", "") for key in ("name", "digest"))
    if base:
        algorithm, _, value = base_digest.partition(":")
        layers = labels.get("nightjar.base.layers", "").split()  # of a base that was never in a registry
        known = {"digest": {algorithm: value}} if value else {"annotations": {"layers": layers}} if layers else {}
        dependencies.append({"uri": f"pkg:docker/{base}", **known})
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
