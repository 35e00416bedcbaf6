"""Capture folder (`nightjar.capture/1`) whose raw trace is an estimate: a profile of a program that never ran.

In: a `Compilation` and its `Estimate`. Out: `manifest.json`, `raw/rank0000.estimate.zip` (the HLO protobuf and the
timeline of one step as JSON, `nightjar.estimate/1`) and the Python sources. `nightjar-profiling report FOLDER` makes
tables, flame graph and page from it. Every name, warning and title says that nothing was measured.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nightjar_models.aot.estimate import Estimate
from nightjar_models.errors import OutputError
from nightjar_models.hardware.target import Cluster
from nightjar_models.program.module import Module

SCHEMA = "nightjar.capture/1"
VERSIONS = ("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin", "nvidia-cudnn-cu12")
ESTIMATE = "nightjar.estimate/1"


def render_timeline(estimate: Estimate, program: str, cluster: Cluster) -> dict[str, Any]:
    """The timeline of one step, in columns; times in nanoseconds from the start of the step."""
    return {
        "schema": ESTIMATE,
        "program": program,
        "target": str(cluster),
        "device": cluster.target.name,
        "step_ns": round(estimate.step_s * 1e9),
        "instruction": [span.instruction for span in estimate.spans],
        "stream": [span.stream for span in estimate.spans],
        "start_ns": [round(span.start_s * 1e9) for span in estimate.spans],
        "duration_ns": [round(span.seconds * 1e9) for span in estimate.spans],
    }


def find_sources(module: Module) -> list[str]:
    """The existing Python files in the program's stack frames, without libraries."""
    names = module.proto.hlo_module.stack_frame_index.file_names
    return sorted({name for name in names if "-packages/" not in name and Path(name).is_absolute() and _is_file(name)})


def render_manifest(
    command: Sequence[str], environment: Mapping[str, Any], cluster: Cluster, sources: Sequence[str]
) -> dict[str, Any]:
    """The manifest of the capture."""
    return {
        "schema": SCHEMA,
        "backend": "estimate",
        "command": list(command),
        "exit_code": 0,
        "steps": None,
        "environment": {
            **environment,
            "cwd": str(Path.cwd()),
            "devices": [f"{cluster.target.name} (estimate)"] * cluster.devices,
            "versions": {name: environment["packages"][name] for name in VERSIONS if name in environment["packages"]},
        },
        "raw": ["raw/rank0000.estimate.zip"],
        "sources": list(sources),
        "user_code": [],
        "warnings": [],  # the reader of the raw file says that it is an estimate
    }


def write_capture(folder: Path, hlo: bytes, timeline: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
    """Writes the capture folder; the manifest last, so that a folder with a manifest is complete."""
    try:
        (folder / "raw").mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(folder / manifest["raw"][0], "w", zipfile.ZIP_LZMA) as archive:
            for name, data in (("program.hlo.pb", hlo), ("timeline.json", json.dumps(timeline).encode())):
                archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_LZMA)
        for source in manifest["sources"]:
            copy = folder / "sources" / source.lstrip("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {error.strerror}.", "name another folder with --out") from None


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:
        return False
