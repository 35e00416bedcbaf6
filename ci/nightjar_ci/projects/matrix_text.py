"""The matrix written for a project.

In: a `Project`, and short runs of its training scripts. Out: the text of `ci/nightjar/matrix.toml`, with comments for
its owner. Tests become jobs of kind `test`; benchmarks become measured jobs, and so does a training script that prints
its loss, if there is nothing else to run.
"""

from __future__ import annotations

import json
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from nightjar_ci.environments.declared import read_required_python
from nightjar_ci.environments.sources import read_text
from nightjar_ci.errors import InputError
from nightjar_ci.formats.suite import Case, KnownFailure
from nightjar_ci.projects.look import Project
from nightjar_ci.projects.printed_loss import BAR_VARIABLE, SHORT_RUN_S, ShortRun

MATRIX = "ci/nightjar/matrix.toml"
POLICIES = "ci/nightjar/policies.toml"
TEST_TIMEOUT_S = 3600
_HEAD = """# What runs every night. Written by `nightjar-ci init`; yours to change.
#   nightjar-ci nightly {matrix}    run it here, now
#   nightjar-ci show matrix                      every key
schema = "nightjar.matrix/1"
name = {name}
"""
_ENVIRONMENT = """# The environment has this project, what its tests need and the newest {what} that fit; it is resolved
# again every night. It is spelt `project:.[EXTRA],--group GROUP,-r FILE,PACKAGE`.
"""
_LIMIT = "# seconds; no test begins later; each test function runs once before further parameters of any"


def render_matrix(
    project: Project,
    known: Sequence[KnownFailure] = (),
    *,
    limit_s: float | None = None,
    runs: Mapping[str, ShortRun] = MappingProxyType({}),
) -> str:
    jobs = list(_find_jobs(project, known, limit_s, runs))
    if not jobs:
        raise InputError(
            f"{project.folder}: there is nothing to run: no test_*.py or *_test.py, no benchmarks of pytest-benchmark, "
            "no train*.py.",
            _explain_nothing(project),
        )
    what = "JAX and packages" if project.uses_jax else "packages"
    parts = [_HEAD.format(matrix=MATRIX, name=_quote(project.name)), "\n"]
    if project.variables:
        parts.append("[defaults.env]\n")
        for name, value in project.variables.items():  # braces are placeholders there
            parts.append(f"{name} = {_quote(value.replace('{', '{{').replace('}', '}}'))}\n")
        parts.append("\n")
    parts += [_ENVIRONMENT.format(what=what).rstrip("\n")]
    parts += jobs
    if project.scripts and not project.trainings:
        parts.append(
            f"\n# The job that gates the loss of {project.scripts[0]}: see docs/gate-any-program.md of Nightjar.\n"
        )
    return "".join(parts)


def as_known_failure(case: Case) -> KnownFailure:
    """The entry for a test that fails, with the first line of its message, without paths, as the reason."""
    lines = (line for line in (case.message or "").splitlines() if line.strip())
    reason = _without_folders(next(lines, "it failed when this file was written"))
    return KnownFailure(test=case.name, reason=reason.encode("utf-8", "replace").decode())


def _without_folders(text: str) -> str:
    """A text without the folders of this machine.

    >>> _without_folders("no file '/home/me/data/a.npz', see https://a.b/c")
    "no file 'a.npz', see https://a.b/c"
    """
    return re.sub(r"(?<![\w:/.])/(?:[\w.+@ -]+/)+", "", text)


def _explain_nothing(project: Project) -> str:
    if (project.folder / "PKG-INFO").is_file():
        return "a source distribution often lacks the tests: use a checkout of the project's repository"
    return "write a matrix: `nightjar-ci show matrix` prints its keys"


def _find_jobs(
    project: Project, known: Sequence[KnownFailure], limit_s: float | None, runs: Mapping[str, ShortRun]
) -> Iterator[str]:
    runner = ("python", "-m", "pytest") if project.python else ("pytest",)
    if project.n_test_files:
        workers = ("-n", "auto") if project.parallel else ()
        tables, timeout_s = "", TEST_TIMEOUT_S
        if limit_s is not None:
            tables = f"[job.tests]\nlimit_s = {limit_s:g}  {_LIMIT}\n"
            timeout_s = max(TEST_TIMEOUT_S, 2 * math.ceil(limit_s))  # failing tests are rerun after the limit
        yield _render_job(
            name=f"{project.name}-tests",
            kind="test",
            cwd=project.cwd,
            command=(*runner, *workers, *(os.path.relpath(path, project.cwd or ".") for path in project.tests)),
            environment=project.environment,
            timeout_s=timeout_s,
            tables=tables + "".join(map(_render_known, known)),
        )
    if project.benchmarks:
        one = ("-n0",) if "pytest-xdist" in project.environment else ()  # whatever the options of the project
        options = ("--benchmark-enable", *one, "--benchmark-only", "--benchmark-json", "{out}/benchmark.json")
        yield _render_job(
            name=f"{project.name}-benchmarks",
            command=(*runner, *project.benchmarks, *options),
            environment=",".join(dict.fromkeys([*project.environment.split(","), "pytest-benchmark"])),
            tables='[job.adapter]\nformat = "pytest-benchmark"\nfile = "benchmark.json"\n',
        )
    for number, script in enumerate(project.trainings):
        name = f"{project.name}-train" + (f"-{number + 1}" if number else "")
        environment = ",".join(part for part in project.environment.split(",") if part != "pytest")
        run = runs.get(script)
        if run is not None and run.pattern is not None:
            yield _render_training(name, environment, run, run.pattern)
            continue
        comment = "A script is one test: it passes if it ends with exit code 0."
        if run is not None:
            comment += f"\nIts loss is not gated: {_without_folders(run.problem)}"
        yield _render_job(name=name, kind="test", command=("python", script), environment=environment, comment=comment)


def _render_training(name: str, environment: str, run: ShortRun, pattern: str) -> str:
    quoted = f"'{pattern}'"
    if "'" in pattern:
        quoted = _quote(pattern)
    table = ["[job.adapter]", 'format = "log"', f"file = {_quote(run.file)}", f"pattern = {quoted}"]
    table.append('curve = [{ field = "loss" }]')
    if run.has_bar:
        variables = (f"{name} = {_quote(value)}" for name, value in BAR_VARIABLE.items())
        table = ["[job.env]", *variables, *table]
    return _render_job(
        name=name,
        command=("python", run.script, *(("--seed", "{seed}") if run.seeded else ())),
        seeds=(0, 1, 2),
        environment=environment,
        tables="\n".join([*table, ""]),
        comment="\n".join(describe_run(run)),
    )


def _render_job(*, comment: str = "", tables: str = "", timeout_s: int = TEST_TIMEOUT_S, **keys: Any) -> str:
    lines = [f"# {line}" for line in comment.splitlines()]
    if lines:
        lines.insert(0, "")
    lines += ["[[job]]", *(f"{key} = {_render(value)}" for key, value in keys.items() if value is not None)]
    return "\n".join(["", *lines, f"timeout_s = {timeout_s}", tables])


def _render(value: str | int | Sequence[str | int]) -> str:
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, int):
        return str(value)
    return f"[{', '.join(map(_render, value))}]"


def describe_run(run: ShortRun) -> Iterator[str]:
    """What is gated of a script that prints its loss, in words."""
    yield f"{run.script} prints its loss, as in these lines:"
    yield from (f"  {_without_folders(line)[:100]}" for line in run.lines)
    yield f"Gated each night: the loss of three seeds, as {POLICIES} says."
    yield "It is compared with a baseline; make that once, and commit it:"
    yield f"  nightjar-ci baseline {MATRIX} --seeds 0:10"
    if not run.seeded:
        yield 'It has no --seed: first let it take its seed from int(os.environ["NIGHTJAR_SEED"]).'
    if not run.ended:
        argument = "an argument" if run.length is None else run.length
        yield f"It had not ended after {SHORT_RUN_S:.0f} s: add {argument} to the command, so that it takes minutes."


def _render_known(known: KnownFailure) -> str:
    text = f"[[job.tests.known_failure]]\ntest = {_quote(known.test)}\nreason = {_quote(known.reason)}\n"
    if known.issue is None:
        return text
    return f"{text}issue = {_quote(known.issue)}\n"


def _quote(text: str) -> str:
    """A TOML string: a JSON string except for characters beyond U+FFFF, surrogates and DEL."""
    whole = text.encode(errors="replace").decode()
    return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007f")


NAME = "nightjar-ci"
_TEMPLATES = Path(__file__).with_name("templates")
_PATHS = {"github": Path(".github/workflows/nightjar.yml"), "gitlab": Path("ci/nightjar/gitlab-ci.yml")}
_PYTHONS = ("3.12", "3.13", "3.14", "3.11")  # the first that a project allows; nightjar-ci needs 3.11


def read_policies() -> str:
    return (_TEMPLATES / "policies.toml").read_text(encoding="utf-8")


def render_workflow(project: Project) -> tuple[Path, str]:
    """The path of a project's workflow, relative to its folder, and its text."""
    text = (_TEMPLATES / f"{project.ci}.yml").read_text(encoding="utf-8")
    minute = zlib.crc32(project.name.encode()) % 60  # so that projects do not all start at once
    text = text.replace("MINUTE", str(minute)).replace("PYTHON", choose_python(project.folder))
    checkout = "persist-credentials: false"
    if (project.folder / ".gitmodules").is_file():
        text = text.replace(checkout, f"{checkout}, submodules: true")
    if "filter=lfs" in read_text(project.folder / ".gitattributes"):
        text = text.replace(checkout, f"{checkout}, lfs: true")
    return _PATHS[project.ci], text.replace("REQUIREMENT", render_requirement(read_origin()))


def read_origin() -> str:
    """Where this program was installed from, as its installer recorded it; empty for a package index."""
    try:
        return distribution(NAME).read_text("direct_url.json") or ""
    except PackageNotFoundError:
        return ""


def render_requirement(origin: str) -> str:
    """What another machine has to install to have this program; the index if the origin is a folder or a file.

    >>> commit = '{"url": "https://host/nightjar", "subdirectory": "ci", "vcs_info": {"vcs": "git", "commit_id": "1a"}}'
    >>> render_requirement(commit), render_requirement('{"url": "file:///nightjar/ci", "dir_info": {}}')
    ('nightjar-ci @ git+https://host/nightjar@1a#subdirectory=ci', 'nightjar-ci')
    """
    try:
        document = json.loads(origin)
        url = urlsplit(document["url"])
        commit = document.get("vcs_info", {}).get("commit_id")
    except (ValueError, KeyError, TypeError, AttributeError):
        return NAME
    if url.scheme != "https" or url.username or '"' in document["url"]:
        return NAME  # a folder of this machine, or an address with somebody's password
    if commit is None:
        return f"{NAME} @ {document['url']}"
    folder = f"#subdirectory={document['subdirectory']}" if "subdirectory" in document else ""
    return f"{NAME} @ git+{document['url']}@{commit}{folder}"


def choose_python(folder: Path) -> str:
    required = read_required_python(folder)
    return next((version for version in _PYTHONS if required.contains(f"{version}.9")), _PYTHONS[0])
