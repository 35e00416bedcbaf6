"""Counts of instructions: by the processor in the job's own run, or by Valgrind in one beside it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nightjar_ci.counters.instructions import PERF, VALGRIND, find_counter, read_cachegrind, read_perf
from nightjar_ci.errors import InputError
from nightjar_ci.formats.run_record import Sample, read_run
from nightjar_ci.night.run_job import run_job
from tests.ci.jobs import GOOD, make_job, python

# Both run what they are given, and leave the file that the real program leaves.
FAKES = {
    "perf": """
case "$*" in *'-- true') echo "${FAKE_COUNT:-<not supported>},,instructions:u,1,100.00,," >&2; exit 0;; esac
while [ "$1" != -- ]; do [ "$1" = -o ] && out=$2; shift; done; shift
echo '1234567,,instructions:u,1,100.00,,' > "$out"; exec "$@"
""",
    "valgrind": """
while case "$1" in -*) true;; *) false;; esac; do
  case "$1" in --cachegrind-out-file=*) out=${1#*=};; esac; shift
done
printf 'events: Ir\\nsummary: 800\\n' > "${out%.%p}.1"; printf 'events: Ir\\nsummary: 20\\n' > "${out%.%p}.2"
[ -z "$FAKE_CRASH" ] || exit 1
exec "$@"
""",
}


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    find_counter.cache_clear()
    yield
    find_counter.cache_clear()


def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *names: str, **variables: str) -> None:
    """Has only these programs on PATH, beside those of the system that they need."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\n{FAKES[name]}")
        (folder / name).chmod(0o755)
    (folder / "true").symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("NIGHTJAR_SANDBOX", "off")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def count(tmp_path: Path, **changes: object) -> Sample:
    outcome = run_job(make_job(*python(GOOD), measure=("instructions",), **changes), tmp_path / "out")
    assert (outcome.state, outcome.message) == ("completed", None)
    sample = read_run(tmp_path / "out" / "result.json").sample("instruction_count")
    assert sample is not None
    return sample


def test_a_processor_that_counts_is_read_in_the_jobs_own_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path, "perf", "valgrind", FAKE_COUNT="99")
    sample = count(tmp_path)
    assert (sample.unit, sample.values) == (PERF, (1234567.0,))


def test_elsewhere_valgrind_counts_a_second_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path, "perf", "valgrind")
    sample = count(tmp_path)
    assert (sample.unit, sample.values) == (VALGRIND, (820.0,))


def test_a_second_run_that_fails_is_no_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path, "valgrind")
    job = make_job(*python(GOOD), measure=("instructions",), env={"FAKE_CRASH": "1"})
    outcome = run_job(job, tmp_path / "out")
    assert outcome.state == "invalid"
    assert "counts instructions under Valgrind ended failed" in str(outcome.message)
    assert "raise timeout_s" in str(outcome.message)


def test_a_machine_that_cannot_count_names_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, tmp_path)
    outcome = run_job(make_job(*python(GOOD), measure=("instructions",)), tmp_path / "out")
    assert outcome.state == "invalid"
    assert "this machine cannot count instructions" in str(outcome.message)
    assert "install valgrind" in str(outcome.message)


@pytest.mark.parametrize("text", ["", "<not counted>,,instructions:u,0,0.00,,", "12,,cycles:u,1,100.00,,"])
def test_perf_without_a_count_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="perf counted no instructions"):
        read_perf(text)


@pytest.mark.parametrize("texts", [[], ["events: Ir\n"], ["summary: 3", ""]])
def test_cachegrind_without_a_sum_is_refused(texts: list[str]) -> None:
    with pytest.raises(InputError, match="Valgrind counted no instructions in"):
        read_cachegrind(texts)
