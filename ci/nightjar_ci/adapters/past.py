"""The past of a suite, as asv and github-action-benchmark keep it: a night folder for each commit that they measured.

In: a folder of asv's results, or the action's `data.js`. Out: night folders with the commit, its date and the machine,
so that the first night of a project is judged by its history. Of several results of one commit, the first is taken.

Source: asv 0.6 docs/source/dev.rst, versions 1 and 2 of its results; github-action-benchmark src/write.ts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nightjar_ci.adapters.benchmarks import list_asv_samples
from nightjar_ci.adapters.convert import About, make_record
from nightjar_ci.adapters.machine import read_machine
from nightjar_ci.errors import InputError
from nightjar_ci.formats.documents import read_json, write_json
from nightjar_ci.formats.job import Job
from nightjar_ci.formats.night_folder import Night, job_folder, read_night, write_night
from nightjar_ci.formats.outcome import make_outcome
from nightjar_ci.formats.run_record import Better, Cpu, Environment, Git, Sample

_DATA_JS = "window.BENCHMARK_DATA"
_SHA = re.compile("[0-9a-f]{7,64}")
_HIGHER = ("benchmarkjs", "pytest", "customBiggerIsBetter")  # tools whose larger values are better


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurements of one commit."""

    sha: str
    at: datetime
    samples: tuple[Sample, ...]
    environment: Environment


def read_past(path: Path) -> tuple[list[Measured], int]:
    """The measured commits in a folder of asv's results or in a `data.js`, oldest first: this machine's of several.

    Returns: the commits, and the number of further results, which are left out.
    """
    if path.is_file():
        measured = list(_read_action(path))
    else:
        files = sorted([*path.glob("*.json"), *path.glob("*/*.json")])
        results = [file for file in files if file.name not in ("machine.json", "benchmarks.json")]
        measured = [commit for file in results if (commit := _read_asv(file)) is not None]
    if not measured:
        hint = "name a night folder, asv's folder of results, or github-action-benchmark's data.js"
        raise InputError(f"{path}: it holds no night and no history of benchmarks.", hint)
    for commit in measured:
        if not _SHA.fullmatch(commit.sha):  # a part of it names a folder
            raise InputError(f"{path}: {commit.sha[:80]!r} is not the digest of a commit.")
    kept, machines = measured, sorted({commit.environment.measured_on for commit in measured})
    if len(machines) > 1:
        here = read_machine("current", None).measured_on
        if here not in machines:
            text = f"{path}: it has results of several machines, and none of them is this one, {here!r}: "
            raise InputError(text + f"{', '.join(map(repr, machines))}.", f"import the folder of one: {path}/MACHINE")
        kept = [commit for commit in measured if commit.environment.measured_on == here]
    commits = {commit.sha: commit for commit in reversed(kept)}
    return sorted(commits.values(), key=lambda commit: commit.at), len(measured) - len(commits)


def write_past(measured: Measured, cell: str, matrix: str, nights: Path) -> Path:
    """Writes the night folder of one commit, in which `cell` is the job that measured it."""
    started_at = measured.at.isoformat(timespec="milliseconds")
    job = Job(
        id=cell, cell=cell, replicate=None, kind="train", command=("true",), env={},
        environment="current", executor="imported", timeout_s=1.0,
    )  # fmt: skip
    outcome = make_outcome(job, state="completed", started_at=started_at, exit_code=0)
    about = About(
        job=cell, workload=cell, seed=0, started_at=started_at, duration_s=0.0, environment=measured.environment
    )
    digest = hashlib.sha256(f"{matrix} {measured.sha}".encode()).hexdigest()  # another matrix has nights of its own
    moment = f"{measured.at:%Y-%m-%dT%H%M}"
    folder, earlier = nights / f"{moment}-{digest[:4]}", nights / f"{moment}-{measured.sha[:4]}"
    if (earlier / "night.json").exists() and read_night(earlier).matrix == matrix:
        folder = earlier  # imported when ids did not hold the matrix
    others = read_night(folder).jobs if (folder / "night.json").exists() else ()
    night = Night(
        id=folder.name,
        matrix=matrix,
        started_at=started_at,
        finished_at=started_at,
        git=Git(sha=measured.sha, dirty=False),
        jobs=(*(other for other in others if other.job != cell), outcome),
    )
    write_json(job_folder(folder, cell) / "outcome.json", outcome)
    write_json(job_folder(folder, cell) / "result.json", make_record(about, (), measured.samples))
    write_night(folder, night)  # last: a folder without it is no night
    return folder


def _read_asv(path: Path) -> Measured | None:
    """The measurements in one of asv's files; None if every benchmark failed."""
    document, about = read_json(path), {}
    if (machine := path.parent / "machine.json").exists():
        about = read_json(machine)
    try:
        sha, at = str(document["commit_hash"]), datetime.fromtimestamp(document["date"] / 1000, UTC)
        names = {name: str(version) for name, version in document.get("requirements", {}).items() if version}
        environment = _describe(about, str(document.get("python", "unknown")), names)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{path}: not a valid asv result: {type(error).__name__}: {error}.") from None
    samples = tuple(list_asv_samples(path, document))
    if not samples:
        return None
    return Measured(sha=sha, at=at, samples=samples, environment=environment)


def _read_action(path: Path) -> Iterator[Measured]:
    """The measured commits in a `data.js`, each with its benchmarks of all suites; of several runs, the first."""
    suites: dict[str, dict[str, Sample]] = {}
    times: dict[str, datetime] = {}
    try:
        text = path.read_text(encoding="utf-8").partition(_DATA_JS)[2].partition("=")[2]
        entries = json.loads(text.rstrip().rstrip(";"))["entries"]
        for suite, commits in entries.items():
            for commit in commits:
                better: Better = "lower"
                if commit["tool"] in _HIGHER:
                    better = "higher"
                sha = str(commit["commit"]["id"])
                times.setdefault(sha, datetime.fromtimestamp(commit["date"] / 1000, UTC))
                for bench in commit["benches"]:
                    name = f"{suite}: " * (len(entries) > 1) + bench["name"]
                    sample = Sample(name=name, unit=bench["unit"], better=better, values=(float(bench["value"]),))
                    suites.setdefault(sha, {}).setdefault(name, sample)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(f"{path}: not github-action-benchmark's data.js: {type(error).__name__}: {error}.") from None
    here = read_machine("current", None)  # the file names none, and no night is compared with an unknown one
    for sha, samples in suites.items():
        yield Measured(sha=sha, at=times[sha], samples=tuple(samples.values()), environment=here)


def _to_count(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _describe(machine: dict[str, Any], python: str, packages: dict[str, str]) -> Environment:
    """The environment of a measurement, as far as asv's `machine.json` tells it."""
    model = machine.get("cpu") or machine.get("machine") or "unknown"
    memory_kb, cores = str(machine.get("ram")).removesuffix("kB"), str(machine.get("num_cpu"))  # as a person wrote them
    return Environment(
        python=python,
        platform=f"{machine.get('os', 'unknown')}-{machine.get('arch', 'unknown')}",
        cpu=Cpu(model=model, cores=_to_count(cores) or 1, memory_bytes=1024 * _to_count(memory_kb)),
        backend="cpu",
        devices=("cpu",),
        packages=packages,
        flags={},
        git=None,
        image=None,
    )
