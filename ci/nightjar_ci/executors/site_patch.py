"""A site's own additions to every manifest: queue, namespace, service account, pull secrets, security, topology. Pure.

In: a JobSet and a patch, the content of a TOML file with the tables `jobset`, `pod_metadata`, `pod` and `container`.
Out: the JobSet with each table merged into its place. A table is merged key by key, a list is appended, and any other
value replaces the old one; `false` and `0` are values, and nothing can be removed.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping
from typing import Any

from nightjar_ci.errors import InputError
from nightjar_ci.executors.kubernetes import Manifest

TABLES = ("jobset", "pod_metadata", "pod", "container")


def patch_jobset(manifest: Manifest, patch: Mapping[str, Any], source: str) -> Manifest:
    """A JobSet with a site's additions.

    Args:
        manifest: as `render_jobset` made it.
    """
    for name, table in patch.items():
        if name not in TABLES or not isinstance(table, Mapping):
            near = difflib.get_close_matches(name, TABLES, n=1)
            hint = f"did you mean [{near[0]}]?" if near else None
            raise InputError(f"{source}: [{name}] is not a table of a patch, expected {', '.join(TABLES)}.", hint)
    patched = copy.deepcopy(manifest)
    for job in patched["spec"]["replicatedJobs"]:
        template = job["template"]["spec"]["template"]
        _merge(template["metadata"], patch.get("pod_metadata", {}), f"{source}: [pod_metadata]")
        _merge(template["spec"], patch.get("pod", {}), f"{source}: [pod]")
        _merge(template["spec"]["containers"][0], patch.get("container", {}), f"{source}: [container]")
    _merge(patched, patch.get("jobset", {}), f"{source}: [jobset]")
    return patched


def _merge(into: Manifest, table: Mapping[str, Any], where: str) -> None:
    for key, value in table.items():
        old = into.get(key)
        if old is not None and isinstance(old, (dict, list)) != isinstance(value, (Mapping, list)):
            kinds: dict[type, str] = {dict: "a table", list: "a list"}
            raise InputError(f"{where}: {key!r} is {value!r}, expected {kinds.get(type(old), 'a single value')}.")
        if isinstance(old, dict):
            _merge(old, value, f"{where} {key}")
        elif isinstance(old, list):
            into[key] = [*old, *value]
        else:
            into[key] = copy.deepcopy(value)
