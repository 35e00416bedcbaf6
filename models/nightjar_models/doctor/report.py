"""Report of the doctor: one page of text for people, or the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from nightjar_models.doctor.checks import Finding, cuda_flavors
from nightjar_models.doctor.cluster import Cluster
from nightjar_models.doctor.facts import Facts, format_version

SCHEMA = "nightjar.doctor/1"
_SHOWN = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def render_report(facts: Facts, findings: Sequence[Finding], cluster: Cluster | None = None) -> str:
    """The page, 40 lines or so."""
    lines = [f"Python     {facts.python}, {facts.platform}{', in a container' if facts.container else ''}"]
    lines.append(f"Driver     {format_version(facts.driver) if facts.driver else 'none loaded'}")
    for number, gpu in enumerate(facts.gpus):
        memory = ""
        if gpu.memory_mib:
            used = "?" if gpu.used_mib is None else gpu.used_mib
            memory = f", {gpu.memory_mib} MiB, {used} in use"
        lines.append(f"GPU {number:<6} {gpu.name}, compute capability {format_version(gpu.capability)}{memory}")
    if not facts.gpus:
        lines.append("GPU        none seen")
    lines.append(f"JAX        {_describe_jax(facts)}")
    if shown := [f"{name} {facts.packages[name]}" for name in _SHOWN if name in facts.packages]:
        lines.append(f"           {', '.join(shown)}")
    flavors = cuda_flavors(facts)
    lines += [f"CUDA {number:<5} wheels: {len(names)} packages" for number, names in sorted(flavors.items())]
    if not flavors:
        lines.append("CUDA       no wheels installed")
    for library in facts.libraries:
        loaded = library.error or f"loaded {format_version(library.loaded)}"
        wanted = ""
        if library.compiled:
            wanted = f", compiled against {format_version(library.compiled)}"
        elif library.required:
            wanted = f", needs {format_version(library.required)}"
        lines.append(f"  {library.name:<13} {loaded}{wanted}")
    lines += _describe_not_loaded(facts)
    for title, start in (("TE", "transformer-engine"), ("DALI", "nvidia-dali")):
        versions = [f"{name} {version}" for name, version in facts.packages.items() if name.startswith(start)]
        lines.append(f"{title:<10} {', '.join(versions) or 'not installed'}")
    shm = "none" if facts.shm_bytes is None else f"{facts.shm_bytes / 2**20:.0f} MiB"
    lines.append(f"/dev/shm   {shm}")
    lines += [f"           {name}={value}" for name, value in facts.environ.items()]
    if cluster is not None:
        lines += _describe_node(cluster)
    lines.append("")
    for finding in findings:
        whose = f" ({finding.whose})" if finding.whose else ""
        lines += [f"{finding.level}: {finding.found}.", f"  fix{whose}: {finding.fix}"]
    wrong = sum(finding.level != "note" for finding in findings)
    lines.append(f"{wrong} of {len(findings)} findings need a fix." if wrong else "Nothing is wrong.")
    return "\n".join(lines)


def render_json(facts: Facts, findings: Sequence[Finding], cluster: Cluster | None = None) -> str:
    """The same as JSON: `nightjar.doctor/1`; `cluster` is null if it was not asked for."""
    document = {
        "schema": SCHEMA,
        "facts": asdict(facts),
        "cluster": None if cluster is None else asdict(cluster),
        "findings": [asdict(finding) for finding in findings],
    }
    return json.dumps(document, indent=1)


def _describe_node(cluster: Cluster) -> list[str]:
    """The lines about a cluster's node."""
    ports = [f"{port.name} {port.link} {'up' if port.active else 'down'}, {port.rate}" for port in cluster.ports]
    lines = [f"Fabric     {ports[0] if ports else 'none seen'}", *(f"           {port}" for port in ports[1:])]
    limits = ", ".join(f"{name} {'unlimited' if limit < 0 else limit}" for name, limit in cluster.limits.items())
    lines += [
        f"Libraries  {', '.join(cluster.libraries) or 'none for a fabric'}",
        f"Limits     {limits}",
        f"Name       stands for {', '.join(cluster.addresses) or 'no address'}",
    ]
    for number, folder in enumerate(cluster.folders):
        free = "does not exist" if folder.free_bytes is None else f"{folder.free_bytes / 2**30:.1f} GiB free"
        lines.append(f"{'' if number else 'Folders':<10} {folder.used_as}={folder.path}: {free}")
    return lines


def _describe_not_loaded(facts: Facts) -> list[str]:
    """A line for each of cuDNN and NCCL that was not loaded, because JAX has no CUDA plugin here."""
    lines = []
    for name, start in (("cuDNN", "nvidia-cudnn-cu"), ("NCCL", "nvidia-nccl-cu")):
        if all(library.name != name for library in facts.libraries):
            wheels = [f"{wheel} {version}" for wheel, version in facts.packages.items() if wheel.startswith(start)]
            shown = "no wheel installed"
            if wheels:
                shown = f"{', '.join(wheels)}, not loaded: JAX has no CUDA plugin here"
            lines.append(f"  {name:<13} {shown}")
    return lines


def _describe_jax(facts: Facts) -> str:
    if facts.backend is None:
        return "does not start" if "jax" in facts.packages else "not installed"
    kinds = {kind: facts.devices.count(kind) for kind in facts.devices}
    return f"computes on {facts.backend}: {', '.join(f'{count} x {kind}' for kind, count in kinds.items())}"
