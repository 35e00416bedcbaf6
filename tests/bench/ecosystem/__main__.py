"""Bench of releases that broke a library: the night that sees the break, and the bisection that names the release.

`nox -s bench_ecosystem`, `-- --only numpy`, `-- --kind breaks`, `-- --keep FOLDER`: the nights stay there, and cases
that are done are not run again. Each case is a program with one test, in a lock of its own: one night with the versions
before, one with those after, the verdict, and `bisect --verdict` between the two. uv must find Python 3.11 to 3.13.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench.table import NotMeasuredError, Row, finish, measure_part, print_rows

CASES = Path(__file__).with_name("breaks.toml")
NAMED_SHARE = 22 / 24  # of the breaks
EACH = 24  # breaks, and harmless releases
AS_OF = "2026-11-20"  # packages that a case does not name are those of this day
FINDING = "finding.json"
MATRIX = """schema = "nightjar.matrix/1"
name = "guest"
[[job]]
name = "guest"
kind = "test"
command = ["python", "-m", "pytest", "-q", "test_guest.py"]
environment = "uv:{environment}"
timeout_s = 300
env = {{ JAX_PLATFORMS = "cpu" }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    program: str
    package: str
    before: str
    after: str
    culprit: str | None
    test: str
    constant: tuple[str, ...]
    imports: bool

    @property
    def kind(self) -> str:
        if self.culprit is None:
            return "harmless"
        return "breaks"

    @property
    def name(self) -> str:
        return f"{self.program}-with-{self.package}-{self.after}"


@dataclass(slots=True, kw_only=True)
class Finding:
    green: int = -1
    red: int = -1
    named: str = ""
    test: str = ""
    seconds: float = 0.0
    trouble: str = ""


def read_cases() -> list[Case]:
    document = tomllib.loads(CASES.read_text(encoding="utf-8"))
    programs = {program["name"]: program for program in document["program"]}
    return [
        Case(
            program=entry["program"],
            package=entry["package"],
            before=entry["from"],
            after=entry["to"],
            culprit=entry.get("culprit"),
            test=programs[entry["program"]]["test"],
            constant=tuple(programs[entry["program"]]["with"]),
            imports=entry.get("imports", True),
        )
        for entry in (*document["break"], *document["harmless"])
    ]


def find_case(case: Case, folder: Path) -> Finding:
    done = folder / FINDING
    if done.is_file():
        return Finding(**json.loads(done.read_text(encoding="utf-8")))
    shutil.rmtree(folder, ignore_errors=True)  # an interrupted case
    finding = run_case(case, folder)
    done.write_text(json.dumps(asdict(finding), indent=1) + "\n", encoding="utf-8")
    return finding


def run_case(case: Case, folder: Path) -> Finding:
    begin, finding = time.monotonic(), Finding()
    folder.mkdir(parents=True)
    (folder / "test_guest.py").write_text(case.test + "\n", encoding="utf-8")
    (folder / "policies.toml").write_text('schema = "nightjar.policies/1"\n', encoding="utf-8")
    environ = {**os.environ, "NIGHTJAR_STATE_DIR": str(folder / "state")}
    environ.pop("NIGHTJAR_DATABASE_URL", None)
    codes, night = [], folder
    for side, version in (("before", case.before), ("after", case.after)):
        matrix = _write_night(case, version, side, folder)
        done = _run(["nightly", str(matrix), "--policies", "policies.toml", "--baselines", "."], folder, environ)
        codes.append(done.returncode)
        night = Path(done.stdout.strip()).parent
        if done.returncode not in (0, 1):
            finding.trouble = done.stderr[-600:]
    finding.green, finding.red = codes
    if finding.red == 1:
        done = _run(["bisect", "--verdict", str(night / "verdicts.json"), "--json"], folder, environ)
        try:
            answer = json.loads(done.stdout)
            finding.named = ", ".join(answer["culprits"]) or answer["kind"]
            finding.test = answer["after"]["reproduce"] if answer["after"] else ""
        except (ValueError, KeyError, TypeError):
            finding.trouble = done.stderr[-600:]
    finding.seconds = time.monotonic() - begin
    return finding


def is_right(case: Case, finding: Finding) -> bool:
    if case.culprit is None:
        return (finding.green, finding.red) == (0, 0)
    named, test = f"{case.package} {case.culprit}", "test_guest.py"
    if case.imports:
        test += "::"
    return (finding.green, finding.red) == (0, 1) and named in finding.named and test in finding.test


def list_goals() -> list[str]:
    return [
        "breaks seen and named",
        "harmless releases that are red",
        "breaks in the collection",
        "harmless releases in it",
    ]


def measure(cases: Sequence[Case], folder: Path) -> list[Row]:
    if _run(["--version"], Path.cwd(), os.environ).returncode not in (0, 2):
        raise NotMeasuredError("nightjar-ci does not start")
    findings = {}
    for case in cases:
        findings[case.name] = finding = find_case(case, folder / case.name)
        said = "right" if is_right(case, finding) else f"WRONG {finding}"
        print(f"{case.name}: {said}: {finding.named or 'nothing red'} in {finding.seconds:.0f} s", flush=True)
    breaks = [case for case in cases if case.culprit is not None]
    harmless = [case for case in cases if case.culprit is None]
    right = sum(is_right(case, findings[case.name]) for case in breaks)
    wrong = sum(not is_right(case, findings[case.name]) for case in harmless)
    longest = max((finding.seconds for finding in findings.values()), default=0.0)
    return [
        Row("breaks seen and named", right / max(1, len(breaks)), goal=NAMED_SHARE, better="higher"),
        Row("harmless releases that are red", wrong, goal=0),
        Row(
            "breaks in the collection",
            sum(case.culprit is not None for case in read_cases()),
            goal=EACH,
            better="higher",
        ),
        Row("harmless releases in it", sum(case.culprit is None for case in read_cases()), goal=EACH, better="higher"),
        Row("longest case", longest, unit="s"),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="nox -s bench_ecosystem --", description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--kind", choices=("all", "breaks", "harmless"), default="all", help="which of them")
    parser.add_argument("--keep", type=Path, help="folder for the nights; a temporary one where absent")
    options = parser.parse_args(arguments)
    cases = [case for case in read_cases() if options.only in case.name and options.kind in ("all", case.kind)]
    with tempfile.TemporaryDirectory(prefix="nightjar-guests-") as temporary:
        rows = measure_part(list_goals(), lambda: measure(cases, (options.keep or Path(temporary)).absolute()))
    print_rows("Guests: releases that break a program", rows)
    return finish("bench_ecosystem", rows)


def _write_night(case: Case, version: str, side: str, folder: Path) -> Path:
    lock = folder / f"{side}.txt"
    options = ["--quiet", "--no-header", "--no-annotate", "--no-emit-index-url", "--exclude-newer", AS_OF]
    wanted = [*case.constant, "pytest"]
    environment = lock.name
    if case.package == "python":
        options += ["--python-version", version]
        environment += f",python=={version}"
    else:
        wanted.append(f"{case.package}=={version}")
    # Before 0.4.26, jax itself did not require jaxlib.
    wanted = [re.sub(r"^jax==", "jax[cpu]==", requirement) for requirement in wanted]
    command = ["uv", "pip", "compile", *options, "-", "-o", str(lock)]
    subprocess.run(command, input="\n".join(wanted), text=True, check=True)
    if (pinned := re.search(r"^jax==\S+$", lock.read_text(encoding="utf-8"), re.MULTILINE)) is not None:
        environment += f",{pinned[0]}"  # a lock follows the JAX of this environment unless told otherwise
    matrix = folder / f"{side}.toml"
    matrix.write_text(MATRIX.format(environment=environment), encoding="utf-8")
    return matrix


def _run(arguments: Sequence[str], folder: Path, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nightjar_ci", *arguments]
    return subprocess.run(command, cwd=folder, env=dict(environ), capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
